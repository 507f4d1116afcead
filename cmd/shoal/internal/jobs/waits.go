package jobs

import (
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/launcher/proc"
	"github.com/shoal-ml/shoal/launcher/runs"
	"github.com/shoal-ml/shoal/watch"
)

// What commands say of workers that others wait for, and of what a person has to do. One goroutine
// runs it, that of the command; but for printing and processState nothing here does I/O.

// awaitedWorkers returns the workers that others wait for.
func awaitedWorkers(j api.Job) (list []api.Worker) {
	for _, w := range j.Workers {
		if w.Awaited != nil {
			list = append(list, w)
		}
	}
	return list
}

// printStall prints to out what stallText says of a job; nothing if that is nothing.
func printStall(out io.Writer, j api.Job, now time.Time) (err error) {
	if text := stallText(j, now); text != "" {
		_, err = fmt.Fprintf(out, "%s: %s\n", j.Name, text)
	}
	return err
}

// stallText says who is the first worker of a job that others wait for longer than is usual; "" =
// there is none.
func stallText(j api.Job, now time.Time) string {
	for _, w := range awaitedWorkers(j) {
		if w.Awaited.Unusual { // one says enough
			return fmt.Sprintf("%s; shoal explain %s says what can be done", waitText(w, now),
				j.Name)
		}
	}
	return ""
}

// printNeed prints to out what somebody must do before a job goes on, or has the workers that it
// wants; nothing if nobody must do anything.
func printNeed(out io.Writer, j api.Job) (err error) {
	if text := watch.NeedText(j); text != "" {
		_, err = fmt.Fprintf(out, "%s: %s\n", j.Name, text)
	}
	return err
}

// printWaits prints to out which workers others wait for, and with advice what can be done about
// each, for which it reads the state of its process.
func printWaits(out io.Writer, j api.Job, now time.Time, advice bool) (err error) {
	for _, w := range awaitedWorkers(j) {
		_, failed := fmt.Fprintln(out, waitText(w, now))
		err = errors.Join(err, failed)
		if !advice {
			continue
		}
		state, here := processState(j, w)
		for _, line := range adviceLines(j, w, state, here) {
			_, failed = fmt.Fprintln(out, "  "+line)
			err = errors.Join(err, failed)
		}
	}
	return err
}

// waitText says how many workers wait for w, in which call and for how long.
func waitText(w api.Worker, now time.Time) string {
	x := w.Awaited
	others := "1 other waits"
	if x.Waiters > 1 {
		others = fmt.Sprintf("%d others wait", x.Waiters)
	}
	text := fmt.Sprintf("worker %d: %s for it in %s", w.Worker, others, x.Call)
	if x.Group > 0 {
		text += fmt.Sprintf(" of group %d", x.Group)
	}
	text += fmt.Sprintf(", since %s (%s)", timeOrDate(x.Since, now), waitedFor(x, now))
	switch {
	case x.Absent:
		text += "; it has not joined yet"
	case x.OwnCall != "":
		text += "; its own call waits too: " + x.OwnCall
	}
	return text
}

// waitedFor returns how long others have waited, as text.
func waitedFor(x *api.Wait, now time.Time) string {
	d := max(0, now.Sub(x.Since)).Round(time.Second)
	if d < 10*time.Minute {
		return fmt.Sprintf("%.0f s", d.Seconds())
	}
	return strings.TrimSuffix(d.Round(time.Minute).String(), "0s")
}

// adviceLines returns lines about what a person can do about w, a worker that others wait for.
// state and here are what processState says of its process.
func adviceLines(j api.Job, w api.Worker, state byte, here bool) []string {
	list := []string{fmt.Sprintf("what it has printed: shoal logs %s --rank %d", j.Name, w.Worker)}
	at, there := "", ""
	switch {
	case w.Host != j.Head:
		at, there = " on "+w.Host, " there"
	case w.PID != 0 && !here:
		list = append(list, "its process is not to be seen here under its number, as where its "+
			"launcher is in a container; these commands are for there")
		there = " there"
	}
	switch {
	case w.PID == 0:
		return append(list, "its process has not been started yet"+at)
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
		if at != "" {
			at += ", in the container of its agent if there is one"
		}
		list = append(list,
			fmt.Sprintf(
				"where it is%s: py-spy dump --pid %d where it runs Python, else gdb -p %[2]d", at,
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
	return append(list, fmt.Sprintf("to end it%s: kill -9 %d; %s", there, w.PID, without))
}

// processState returns the state of a worker's process as the letter that /proc shows, which it
// reads, 0 if it is not known, as on another host. here says that the number of the process is its
// number here: in a container it has another one.
func processState(j api.Job, w api.Worker) (state byte, here bool) {
	if w.Host != j.Head || w.PID == 0 || !proc.HasOpen(j.PID, runs.LedgerPath(j.Dir)) {
		return 0, false
	}
	return proc.ProcessState(w.PID), true
}
