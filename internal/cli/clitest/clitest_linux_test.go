package clitest

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"
)

// failing is the test of a script that is to fail. It runs one script after the other.
type failing struct {
	*testing.T
	failed bool
}

// Parallel does nothing.
func (f *failing) Parallel() {}

// Verbose says no.
func (f *failing) Verbose() bool { return false }

// FailNow ends the script, and lets the test go on.
func (f *failing) FailNow() {
	f.failed = true
	f.SkipNow()
}

// Run runs a script, and waits for it.
func (f *failing) Run(name string, script func(testscript.T)) {
	f.T.Run(name, func(t *testing.T) {
		each := &failing{T: t}
		defer func() { f.failed = each.failed }()
		script(each)
	})
}

// TestScriptsLeaveNoProcess: at the end of a script that fails, what it has started in the
// background has ended, also what an interrupt of the shell in between does not reach.
func TestScriptsLeaveNoProcess(t *testing.T) {
	dir := t.TempDir()
	script := `exec sh -c 'sh -c "echo \$WORK >work; exec sleep 60" >/dev/null 2>&1 & wait' &beside&
until . cat work
cp work ` + dir + `/work
exec false
`
	if err := os.WriteFile(filepath.Join(dir, "fails.txtar"), []byte(script), 0o600); err != nil {
		t.Fatal(err)
	}
	f := &failing{T: t}
	testscript.RunT(f, params(dir))
	work, err := os.ReadFile(filepath.Join(dir, "work"))
	if err != nil || !f.failed {
		t.Fatalf("the script failed: %v; %v", f.failed, err)
	}
	if left := processesOf(string(work[:len(work)-1])); len(left) > 0 {
		t.Errorf("processes %v are left", left)
	}
}
