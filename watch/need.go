package watch

import (
	"fmt"

	"github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/internal/plural"
)

// What a person has to do for a job, in words. The functions are pure.

// NeedText says what somebody must do before a job goes on, or has the workers that it wants; "" =
// nobody must do anything.
func NeedText(j control.Job) string {
	switch {
	case j.State == control.Stuck:
		return fmt.Sprintf("too few hosts are left to go on by themselves; if the others "+
			"are gone for good, shoal recover %s --force", j.Name)
	case j.State == control.Paused:
		return fmt.Sprintf("waits, because %s fewer than --min %d%s",
			plural.Of(j.Size, "member")+plural.Verb(j.Size, " is", " are"), j.Min,
			MoreWorkersText(j))
	case j.Unplaced > 0 && j.State != control.Stopping:
		return UnplacedText(j)
	}
	return ""
}

// UnplacedText says that a job wants more workers than its hosts have slots, and how another host
// joins.
func UnplacedText(j control.Job) string {
	text := fmt.Sprintf("no host has a free slot for %s, since the hosts have %s in all; the job "+
		"goes on, and starts them when a host joins: ", plural.Of(j.Unplaced, "worker"),
		plural.Of(j.Slots, "slot"))
	if j.Join == "" {
		return text + "this job takes no other hosts, since it was not started with --listen"
	}
	return text + "shoal agent --join " + j.Join + " --token-file FILE, with a token of shoal " +
		"token " + j.Name
}

// MoreWorkersText says which command gives a paused job the workers that it lacks.
func MoreWorkersText(j control.Job) string {
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

// need returns what NeedText says of the job, if its launcher answers.
func (r *Run) need() string {
	if r.live == nil {
		return ""
	}
	return NeedText(*r.live)
}
