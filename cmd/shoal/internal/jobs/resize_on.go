package jobs

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/cli"
)

// shoal resize --on: workers by host. One goroutine runs what is here, that of the command, so
// nothing is locked. Only runOn asks the job, and waits for it.

// parseSlots reads workers by host, such as node1=2,node2=1; "any" is none.
func parseSlots(text string) (map[string]int, error) {
	slots := map[string]int{}
	if text == "any" {
		return slots, nil
	}
	for part := range strings.SplitSeq(text, ",") {
		host, number, ok := strings.Cut(part, "=")
		n, err := strconv.Atoi(number)
		if _, twice := slots[host]; !ok || err != nil || n < 0 || host == "" || twice {
			return nil, cli.Usagef("--on %q: %q is no host with a number of workers; write "+
				"HOST=N,HOST=N with each host once, or any", text, part)
		}
		slots[host] = n
	}
	return slots, nil
}

// runOn asks a job for workers by host, and waits until it has them unless --no-wait is given. It
// prints the changes of the job to out, and to notes which hosts the job does not have. ctx ends
// the waiting.
func (f *resizeFlags) runOn(ctx context.Context, out, notes io.Writer, name string) error {
	slots, err := parseSlots(f.on)
	if err != nil {
		return err
	}
	j, err := findResizable(ctx, name)
	if err != nil {
		return err
	}
	for _, host := range slices.Sorted(maps.Keys(slots)) {
		if len(j.Hosts) > 0 && !slices.Contains(j.Hosts, host) {
			fmt.Fprintf(notes, "shoal: note: no host called %q belongs to job %s yet, so workers "+
				"there wait until it joins; its hosts are %s\n", host, j.Name,
				strings.Join(j.Hosts, ", "))
		}
	}
	maps.DeleteFunc(slots, func(_ string, n int) bool { return n == 0 && len(slots) > 1 })
	g := goal{job: j, what: "workers on " + f.on, noWait: f.noWait || f.on == "any", json: f.json}
	g.ask = func() error {
		if err := j.Allot(ctx, slots, cli.Requester(), ""); err != nil {
			return fmt.Errorf("job %s keeps its workers: %w", j.Name, err)
		}
		return nil
	}
	g.reached = func() (bool, error) {
		if !maps.Equal(j.Allotted, slots) {
			return false, fmt.Errorf("job %s is now to have other workers: somebody else has "+
				"asked for that since; shoal explain %[1]s says who", j.Name)
		}
		return maps.Equal(membersByHost(j), slots) && j.Entering == 0, nil
	}
	return g.askAndWait(ctx, out)
}

// membersByHost counts the members of a job on each host that has some.
func membersByHost(j *control.Job) map[string]int {
	have := map[string]int{}
	for _, w := range j.Workers {
		if w.Rank >= 0 {
			have[w.Host]++
		}
	}
	return have
}
