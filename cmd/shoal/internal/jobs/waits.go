package jobs

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/launcher/proc"
)

// awaited lists the workers for which others wait.
func awaited(j api.Job) (list []api.Worker) {
	for _, w := range j.Workers {
		if w.Awaited != nil {
			list = append(list, w)
		}
	}
	return list
}

// tellUnusual says of a job that it stands still for want of workers.
func tellUnusual(out io.Writer, j api.Job, now time.Time) error {
	for _, w := range awaited(j) {
		if w.Awaited.Unusual {
			_, err := fmt.Fprintf(out, "%s: %s; shoal explain %s says what can be done\n", j.Name,
				waits(w, now), j.Name)
			return err // one says enough
		}
	}
	return nil
}

// tellHeld says of a job that goes on only when somebody does something what that is.
func tellHeld(out io.Writer, j api.Job) error {
	var what string
	switch {
	case j.State == api.Stuck:
		what = fmt.Sprintf("the host that led it is lost, and too few are left to go on by "+
			"themselves; if the others are gone for good, shoal recover %s --force", j.Name)
	case j.State == api.Paused:
		what = fmt.Sprintf("waits, because %s fewer than --min %d%s",
			plural.Of(j.Size, "member")+plural.Verb(j.Size, " is", " are"), j.Min, more(j))
	case j.Unplaced > 0 && j.State != api.Stopping:
		what = unplaced(j)
	default:
		return nil
	}
	_, err := fmt.Fprintf(out, "%s: %s\n", j.Name, what)
	return err
}

// unplaced says that a job wants more workers than its hosts have slots, and what it waits for.
func unplaced(j api.Job) string {
	text := fmt.Sprintf("no host has a free slot for %s, since the hosts have %s in all; the job "+
		"goes on, and starts them when a host joins: ", plural.Of(j.Unplaced, "worker"),
		plural.Of(j.Slots, "slot"))
	if j.Join == "" {
		return text + "this job takes no other hosts, since it was not started with --listen"
	}
	return text + "shoal agent --join " + j.Join + " --token-file FILE, with a token of shoal " +
		"token " + j.Name
}

// more says what gives a paused job the workers that it lacks.
func more(j api.Job) string {
	switch {
	case j.Mesh != "":
		return fmt.Sprintf("; shoal reshape %s gives it more", j.Name)
	case j.Unplaced > 0:
		return fmt.Sprintf(
			", and no host has a free slot; shoal resize %s %d says how another one joins", j.Name,
			j.Min)
	}
	return fmt.Sprintf("; shoal resize %s %d gives it more", j.Name, j.Min)
}

// tellWaits says who is waited for, and with advice what can be done about it.
func tellWaits(out io.Writer, j api.Job, now time.Time, advice bool) (err error) {
	for _, w := range awaited(j) {
		_, failed := fmt.Fprintln(out, waits(w, now))
		err = errors.Join(err, failed)
		if !advice {
			continue
		}
		for _, line := range advise(j, w, processState(j, w)) {
			_, failed = fmt.Fprintln(out, "  "+line)
			err = errors.Join(err, failed)
		}
	}
	return err
}

// waits says of a worker who waits for it.
func waits(w api.Worker, now time.Time) string {
	x := w.Awaited
	others := "1 other waits"
	if x.Waiters > 1 {
		others = fmt.Sprintf("%d others wait", x.Waiters)
	}
	text := fmt.Sprintf("worker %d: %s for it in %s", w.Worker, others, x.Call)
	if x.Group > 0 {
		text += fmt.Sprintf(" of group %d", x.Group)
	}
	text += fmt.Sprintf(", since %s (%s)", since(x.Since, now), waited(x, now))
	switch {
	case x.Absent:
		text += "; it has not joined yet"
	case x.OwnCall != "":
		text += "; its own call waits too: " + x.OwnCall
	}
	return text
}

// waited is how long others have waited.
func waited(x *api.Wait, now time.Time) string {
	d := max(0, now.Sub(x.Since)).Round(time.Second)
	if d < 10*time.Minute {
		return fmt.Sprintf("%.0f s", d.Seconds())
	}
	return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
}

// advise says what a person can do about a worker that others wait for.
func advise(j api.Job, w api.Worker, state byte) []string {
	on := ""
	if w.Host != j.Head {
		on = " on " + w.Host
	}
	list := []string{fmt.Sprintf("what it has printed: shoal logs %s --rank %d", j.Name, w.Worker)}
	switch {
	case w.PID == 0:
		return append(list, "its process has not been started yet"+on)
	case state == 'T':
		list = append(list,
			fmt.Sprintf("its process is stopped, as by SIGSTOP; to let it go on: kill -CONT %d",
				w.PID))
	case state == 't':
		list = append(list, "its process is stopped by a debugger, which can let it go on")
	case state == 'D':
		list = append(list, "its process waits in the kernel, as for a disk or a file server "+
			"that does not answer: see what dmesg says")
	default:
		list = append(list,
			fmt.Sprintf(
				"where it is%s: py-spy dump --pid %d where it runs Python, else gdb -p %[2]d", on,
				w.PID))
	}
	if w.Awaited.OwnCall != "" {
		list = append(list, "workers that wait for each other have made their calls in "+
			"different orders, and do not come out of that by themselves, unless one of them "+
			"computes beside its call")
	}
	if !j.Elastic {
		return append(list,
			fmt.Sprintf("a job that has taken no step cannot go on without it; to end the job: "+
				"shoal stop %s", j.Name))
	}
	without := "the others go on without it"
	switch {
	case j.Spares > 0:
		without += ", with a spare in its place"
	case j.Mesh != "":
		without += ", on a smaller mesh"
	case j.Size <= max(j.Min, 1):
		without = fmt.Sprintf("the job waits then for another: shoal resize %s %d", j.Name, j.Want)
	default:
		without += fmt.Sprintf(", and shoal resize %s %d starts another", j.Name, j.Size)
	}
	if j.Mesh != "" {
		without += "; if it alone has a part of the state, they go back to a checkpoint, and if " +
			"there is none the job ends"
	}
	return append(list, fmt.Sprintf("to end it%s: kill -9 %d; %s", on, w.PID, without))
}

// processState is the state of a worker's process, as the kernel calls it; 0 = not known, as on
// another host.
func processState(j api.Job, w api.Worker) byte {
	if w.Host != j.Head || w.PID == 0 {
		return 0
	}
	return proc.State(w.PID)
}
