package jobs

import (
	"os"
	"testing"

	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/launcher/runs"
)

// TestProcessState checks that a number is taken for that of a worker's process only where the
// launcher has its own number too, and not in a container.
func TestProcessState(t *testing.T) {
	j := api.Job{Head: "a", PID: os.Getpid(), Dir: t.TempDir()}
	w := api.Worker{Host: "a", PID: os.Getpid()}
	if state, here := processState(j, w); state != 0 || here {
		t.Errorf("%c, %v where the launcher has another number", state, here)
	}
	ledger, err := os.Create(runs.LedgerPath(j.Dir))
	if err != nil {
		t.Fatal(err)
	}
	defer ledger.Close()
	if state, here := processState(j, w); state == 0 || !here {
		t.Errorf("%c, %v where the launcher is the process of its number", state, here)
	}
	w.Host = "b"
	if state, here := processState(j, w); state != 0 || here {
		t.Errorf("%c, %v on another host", state, here)
	}
}
