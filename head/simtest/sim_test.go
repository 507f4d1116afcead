package simtest_test

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/head/simtest"
)

var rewrite = flag.Bool("rewrite", false, "write the outputs of the scenarios anew; read the diff")

// Each scenario is a text of events; under each event stands what came of it, indented, and the
// simulation does just that.
func TestScenarios(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no scenarios: %v", err)
	}
	for _, file := range files {
		t.Run(filepath.Base(file), func(t *testing.T) {
			b, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			got, broken := playScript(string(b))
			if broken != nil {
				t.Error(broken)
			}
			if *rewrite {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			if diff := cmp.Diff(string(b), got); diff != "" && !*rewrite {
				t.Errorf("run with -rewrite and read the diff:\n%s", diff)
			}
		})
	}
}

// playScript runs the events of a scenario on a Cluster of its own, a new one for each job, and
// returns them with what came of each, and the first invariant that is broken. Indented lines are
// skipped.
func playScript(script string) (string, error) {
	var out strings.Builder
	c := simtest.New()
	for in := bufio.NewScanner(strings.NewReader(script)); in.Scan(); {
		line := in.Text()
		if strings.HasPrefix(line, "  ") {
			continue // the output of an earlier run
		}
		if strings.HasPrefix(line, "job ") {
			if err := c.CheckFinally(); err != nil {
				return out.String(), err
			}
			c = simtest.New()
		}
		fmt.Fprintln(&out, line)
		err := c.Do(line)
		out.WriteString(c.Output())
		if err != nil {
			return out.String(), err
		}
	}
	return out.String(), c.CheckFinally()
}
