package launcher

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/shoal-ml/shoal/launcher/proc"
	"github.com/shoal-ml/shoal/setting"
)

// How a job that has failed is reported. Run makes the report, on its goroutine, when the job is
// over. But for failureLine, the functions of this file are pure.

// maxReportLine cuts an output line in a report, so that the report stays one screen.
const maxReportLine = 240

// Failure is the error of a job that failed because of one worker. Its text is a report of one
// screen. No method changes it or does I/O, so any goroutine may call them.
type Failure struct {
	Job   string
	Rank  int    // number of the worker
	Size  int    // workers that the job has had
	Host  string // host on which the worker ran
	Exit  proc.Exit
	After time.Duration // from the start of the job
	Early bool          // the worker ended well, but never joined the others
	// Because says for which lost worker this one waited, and in which call: "rank 1 exited with
	// code 0, while rank 0 waits for it in barrier()"; "" = the worker ended by itself.
	Because string
	// Trial is the policy's change in whose trial all workers have ended by themselves; nil = there
	// was none.
	Trial *setting.Change
	Tail  []string // last lines of the worker's output
	Log   string   // file with all of the worker's output
}

// Error is the report, of several lines.
func (f *Failure) Error() string {
	var b strings.Builder
	if f.Because != "" {
		fmt.Fprintf(&b, "job %s failed: %s\n  then    ", f.Job, f.Because)
	} else {
		fmt.Fprintf(&b, "job %s failed: ", f.Job)
	}
	fmt.Fprintf(&b, "rank %d of %d %s\n", f.Rank, f.Size, f.howEnded())
	if f.Trial != nil {
		fmt.Fprintf(&b, "  and     so did all others, in the first steps of change %d (%s), which "+
			"policy %s had made\n", f.Trial.Number, f.Trial.DiffText(), f.Trial.Policy)
	}
	fmt.Fprintf(&b, "  where   host %s, process %d, %s after the start\n", f.Host, f.Exit.PID,
		f.After.Round(10*time.Millisecond))
	if len(f.Tail) == 0 {
		b.WriteString("  output  none\n")
	} else {
		fmt.Fprintf(&b, "  output  its last %s\n", countText(len(f.Tail), "line"))
		for _, line := range f.Tail {
			fmt.Fprintf(&b, "    | %s\n", shortenLine(line))
		}
	}
	fmt.Fprintf(&b, "  log     %s\n", f.Log)
	fmt.Fprintf(&b, "  next    %s", f.advice())
	return b.String()
}

// howEnded says how the worker ended, to continue a sentence.
func (f *Failure) howEnded() string {
	if f.Early {
		return "ended before joining, and others wait for it"
	}
	return f.Exit.String()
}

// advice says in lines what a person can do now.
func (f *Failure) advice() string {
	switch {
	case f.Early:
		return "does the script call shoal.join() on every rank, before it ends?"
	case f.Trial != nil:
		return "if they had too little memory, " + f.lessMemoryAdvice() + ". Started again by " +
			"the same command, a program with job.checkpoint goes on from its newest checkpoint"
	case f.Because != "":
		return "why does the one end before the others? Every rank has to make the same calls, " +
			"as many steps, and none may end in between"
	case f.Exit.Signal == syscall.SIGKILL:
		return "the kernel's out-of-memory killer is the usual cause: check dmesg; use fewer " +
			"workers or smaller batches"
	case f.Exit.Signal == syscall.SIGBUS:
		return "a page of shared memory could not be had: is /dev/shm or the memory limit full?"
	case f.Exit.Signal == syscall.SIGSEGV, f.Exit.Signal == syscall.SIGABRT,
		f.Exit.Signal == syscall.SIGILL, f.Exit.Signal == syscall.SIGFPE:
		return "compiled code has crashed; --env PYTHONFAULTHANDLER=1 shows where a Python " +
			"script was"
	case f.Exit.Signal != 0:
		return "somebody sent it this signal; shoal did not"
	case f.Exit.Code == 127:
		return "a shell says so of a command that it cannot find"
	case len(f.Tail) == 0:
		return "run the command alone to see why; the workers that shoal stopped because of it " +
			"are not at fault"
	}
	return "its output says why; the workers that shoal stopped because of it are not at fault"
}

// lessMemoryAdvice says how the job needs less memory than in its trial.
func (f *Failure) lessMemoryAdvice() string {
	change := func(part string) (from, to uint64) {
		from, _ = strconv.ParseUint(setting.PartOf(f.Trial.From, part), 10, 64)
		to, _ = strconv.ParseUint(setting.PartOf(f.Trial.To, part), 10, 64)
		return from, to
	}
	if from, to := change("batch"); 0 < from && from < to {
		return fmt.Sprintf("let the batch_range end below %d, such as at the %d of before", to,
			from)
	}
	if from, to := change("size"); to < from || slices.Contains(f.Trial.Parts(), "shares") {
		return "for the samples that the change gave them, train with a smaller batch"
	}
	return "train with a smaller batch"
}

// failureLine says in a line why the job has failed, by the fault of v or else by err; "" where it
// has not, or somebody has stopped it. It runs on the goroutine of Run or Serve.
func (l *launcher) failureLine(ctx context.Context, v verdict, err error) string {
	switch {
	case ctx.Err() != nil || l.registry.stoppedBy() != "":
		return ""
	case v.fault != noFault:
		err = l.failureReport(v)
	case err == nil:
		return ""
	}
	line, _, _ := strings.Cut(err.Error(), "\n")
	return strings.TrimPrefix(line, fmt.Sprintf("job %s failed: ", l.registry.jobName()))
}

// countText puts n things into words, as in "3 workers", without the number where there is one;
// what is the noun.
func countText(n int, what string) string {
	if n == 1 {
		return what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// shortenLine shortens a line to maxReportLine characters.
func shortenLine(line string) string {
	runes := []rune(line)
	if len(runes) <= maxReportLine {
		return line
	}
	return string(runes[:maxReportLine]) + "…"
}
