package run

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/shoal-ml/shoal/dash"
	"github.com/shoal-ml/shoal/internal/cli"
)

// The answers to Prometheus of shoal run and shoal agent. But for setRunDir, the goroutine of the
// command calls what is here.

// exporter answers Prometheus about a run; nil = nobody asked for that.
type exporter struct{ metrics *dash.Metrics }

// openMetrics listens at the address of the flag --metrics, and says so; "" = nothing. The caller
// closes it.
func openMetrics(cmd *cobra.Command, address string) (*exporter, error) {
	if address == "" {
		return nil, nil
	}
	m, err := dash.OpenMetrics("--metrics", address)
	if err != nil {
		return nil, cli.AsUsage(err)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "shoal: metrics at http://%s/metrics\n", m.Addr())
	return &exporter{m}, nil
}

// setRunDir says in which directory the run is, from any goroutine. It does not wait.
func (e *exporter) setRunDir(dir string) {
	if e != nil {
		e.metrics.ShowRun(dir)
	}
}

// close ends the answers.
func (e *exporter) close() {
	if e != nil {
		e.metrics.Close()
	}
}
