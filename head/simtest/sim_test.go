package simtest_test

import (
	"bufio"
	"fmt"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/head/simtest"
	"github.com/shoal-ml/shoal/internal/scenariotest"
)

// Each scenario is a text of events; under each event stands what came of it, indented, and the
// simulation does just that.
func TestScenarios(t *testing.T) {
	scenariotest.Run(t, func(t *testing.T, script string) string {
		got, broken := playScript(script)
		if broken != nil {
			t.Error(broken)
		}
		return got
	})
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
