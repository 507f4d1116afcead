package job_test

import (
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/job"
)

// A word and a variable that JSON would change is named.
func TestTextThatJSONWouldChange(t *testing.T) {
	for want, spec := range map[string]job.Spec{
		"":                         {Command: []string{"ä"}, Env: map[string]string{"Ü": "ö"}},
		`command: the word "\xe4"`: {Command: []string{"true", "\xe4"}},
		`env: "LOG" has bytes`:     {Env: map[string]string{"A": "ü", "LOG": "\xff"}},
	} {
		err := spec.CheckText()
		if (err == nil) != (want == "") || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %s", err, want)
		}
	}
}
