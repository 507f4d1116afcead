package snapshot_test

import (
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/checkpoint/snapshot/snapshottest"
)

// TestFolderThatCannotBe is in a file system that takes no folders, and says so as if it were not
// there: nobody has removed it.
func TestFolderThatCannotBe(t *testing.T) {
	var l snapshottest.Lines
	s, memory := snapshottest.SmallState(5, 1)
	snapshottest.Write(t, snapshot.Folder{Root: "/proc/checkpoints", Keep: 2, Log: l.Say}, s,
		memory,
		55, 0)
	if !strings.Contains(l.String(),
		"is abandoned, which does not stop the job: no folder for it can be made: ") ||
		strings.Contains(l.String(), "another worker") {
		t.Errorf("it says %q", &l)
	}
}
