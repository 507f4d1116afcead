package client

import (
	"context"
	"strings"
	"testing"

	api "github.com/shoal-ml/shoal/api/worker"
)

// Several processes that another launcher has started must not train alone, each as rank 0.
func TestJoinRefusesOneOfSeveralOfAnotherLauncher(t *testing.T) {
	t.Setenv(api.EnvSocket, "")
	for _, l := range launchers {
		t.Setenv(l.variable, "")
	}
	for _, l := range launchers {
		t.Run(l.variable, func(t *testing.T) {
			t.Setenv(l.variable, "4")
			_, err := Join(context.Background())
			if err == nil || !strings.Contains(err.Error(), l.variable+"=4") ||
				!strings.Contains(err.Error(), "shoal run -n 4") {
				t.Errorf("with %s=4: %v", l.variable, err)
			}
			t.Setenv(l.variable, "1")
			job, err := Join(context.Background())
			if err != nil {
				t.Fatal(err)
			}
			if err := job.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
