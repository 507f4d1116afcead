package launcher

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/shoal-ml/shoal/job"
)

// A policy in Python is run by the interpreter of the workers, also where the job has a PATH of its
// own.
func TestPolicyHasTheInterpreterOfTheJob(t *testing.T) {
	dir := t.TempDir()
	mine, python := filepath.Join(dir, "mine.py"), filepath.Join(dir, "python3")
	for _, path := range []string{mine, python} {
		if err := os.WriteFile(path, nil, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	words, err := policyCommand(job.Spec{Command: []string{"python3", "train.py"},
		Env: map[string]string{"PATH": dir}}, mine)
	if err != nil || words[0] != python {
		t.Errorf("%q, %v, and the job has %s", words, err, python)
	}
}
