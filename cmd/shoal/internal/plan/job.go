package plan

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/decide/planner/cluster"
	"github.com/shoal-ml/shoal/internal/cli"
	"github.com/shoal-ml/shoal/internal/plural"
)

// The machines of a running job, for which shoal plan makes plans. One goroutine runs what is here,
// that of the command, so nothing is locked. readMachines asks the launcher of the job, and may set
// the batch of the flags.

// printAssumed says which links of a running job nothing has measured.
func printAssumed(out io.Writer, c *cluster.Cluster) error {
	var list []string
	for _, l := range c.Links {
		switch {
		case l.Measured == nil || *l.Measured || !l.Inside && len(c.Hosts) == 1:
		case l.Inside:
			list = append(list, fmt.Sprintf("links inside hosts carry %s a second",
				plural.Bytes(int64(l.Rate))))
		default:
			list = append(list, fmt.Sprintf("other links between hosts %s, with %s for a call",
				plural.Bytes(int64(l.Rate)), seconds(l.Latency)))
		}
	}
	if list == nil {
		return nil
	}
	_, err := fmt.Fprintf(out, "assumed     %s: the job has shown nothing of that yet\n",
		strings.Join(list, "; "))
	return err
}

// readMachines returns what is planned for: what a file says, or what a running job says of itself.
// The batch of the job is taken where none is given.
func (f *flags) readMachines(ctx context.Context) (text []byte, c *cluster.Cluster, err error) {
	if f.job == "" {
		return cli.ReadFile(f.cluster, cluster.MaxBytes, cluster.Parse)
	}
	j, err := control.Find(ctx, f.job)
	if err != nil {
		return nil, nil, err
	}
	if text, err = j.Cluster(ctx); err != nil {
		return nil, nil, fmt.Errorf("job %s: %w", j.Name, err)
	}
	if c, err = cluster.Parse(text); err != nil {
		return nil, nil, fmt.Errorf("job %s: %w", j.Name, err)
	}
	switch {
	case f.batch > 0:
	case j.Pace != nil:
		f.batch = int(j.Pace.Batch)
	case j.Setting != nil:
		f.batch = int(j.Setting.Batch)
	}
	if f.batch == 0 {
		return nil, nil, cli.Usagef("job %s has made no whole step yet that would show how many "+
			"samples it has: say it with --batch 96, or ask again later", j.Name)
	}
	return text, c, nil
}
