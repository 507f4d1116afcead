// Package scenariotest runs the scenario files of a test: texts of commands, in which what each
// command leads to stands indented below it. A test holds what its machine does now against them.
// Its function runs on the goroutine of the test.
package scenariotest

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// rewrite has Run write what the scenarios lead to now into them.
var rewrite = flag.Bool("rewrite", false, "write the outputs of the scenarios anew; read the diff")

// Run plays the scenarios testdata/*.txt of a package, each as a test of its own: play gets the
// text of one, and returns it with what its commands lead to now. It fails where that differs, and
// where there is no scenario. With the flag -rewrite it writes the file anew.
func Run(t *testing.T, play func(t *testing.T, script string) string) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got := play(t, string(text))
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if diff := cmp.Diff(string(text), got); diff != "" {
				t.Errorf("run with -rewrite and read the diff:\n%s", diff)
			}
		})
	}
}
