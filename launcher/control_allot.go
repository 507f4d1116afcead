package launcher

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"unicode"

	"github.com/shoal-ml/shoal/agent"
	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/job"
	"github.com/shoal-ml/shoal/member"
)

// The part of the control socket that is about slots by host, which a pool gives a job. The methods
// run on the goroutine of a request to that socket.

// answerAllot asks the head for so many workers on each host, and waits for the engine's thread. It
// is an HTTP handler, as those in control.go.
func (l *launcher) answerAllot(w http.ResponseWriter, r *http.Request) {
	var ask api.Allot
	if !readControlUpTo(maxAllotBody, w, r, &ask, &ask.Who) {
		return
	}
	if ask.Slots == nil {
		sendError(w, http.StatusBadRequest, errors.New("slots: none are given; say how many on "+
			"each host, and {} ends that"))
		return
	}
	if len(ask.Because) > member.MaxWho || strings.ContainsFunc(ask.Because, func(c rune) bool {
		return !unicode.IsPrint(c)
	}) {
		sendError(w, http.StatusBadRequest,
			fmt.Errorf("because: %.40q… cannot stand in a message; give printable text of up to "+
				"%d bytes", ask.Because, member.MaxWho))
		return
	}
	if len(ask.Slots) > 0 {
		a := member.NewAllotment(ask.Slots, ask.Who)
		err := a.Check()
		if n := a.Total(); err == nil && n > job.MaxWorkers {
			err = fmt.Errorf("%d in all, and a job has at most %d workers", n, job.MaxWorkers)
		}
		if err != nil {
			sendError(w, http.StatusBadRequest, fmt.Errorf("slots: %w", err))
			return
		}
	}
	if by := l.registry.stoppedBy(); by != "" {
		sendError(w, http.StatusConflict,
			fmt.Errorf("%s has asked for the end of the job: it takes no more workers", by))
		return
	}
	before := l.agent.Status()
	for host := range ask.Slots {
		if l.cfg.Fleet == nil && !slices.Contains(before.HostNames(), host) {
			sendError(w, http.StatusConflict,
				fmt.Errorf("%.64q is no host of the job, which takes no others, since it was "+
					"started without --listen and --hosts: give slots on %s", host,
					strings.Join(before.HostNames(), ", ")))
			return
		}
	}
	if err := l.agent.Allot(ask.Slots, ask.Who, ask.Because); err != nil {
		sendError(w, http.StatusConflict, err)
		return
	}
	s := l.agent.Status()
	if s.Head != l.registry.hostName() { // this host has handed over already
		s = before
	}
	sendJSON(w, l.describeJob(s))
}

// describeRoom returns, for tools, for how many workers the job in status s has room, and what its
// hosts may send.
func (l *launcher) describeRoom(s agent.Status) api.Room {
	room := api.Room{Slots: s.Slots, Growth: string(s.Growth), Limit: l.limit.get()}
	if s.Allotment == nil {
		return room
	}
	room.AllottedBy, room.Allotted = s.Allotment.Who, map[string]int{}
	for _, x := range s.Allotment.Slots {
		room.Allotted[x.Host] = x.Slots
	}
	return room
}
