package launcher

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"

	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/internal/plural"
)

// The limit of what this host sends to the other hosts of the job, which a request to the control
// socket sets, here or on the host that leads.

// limit is how many bytes of data a second this host may send to the others of the job. Any
// goroutine may call its methods. Zero = there is no limit.
type limit struct {
	// told is held while this host gets another limit, and until the others were told of that: of
	// two limits at once all hosts have the same one then.
	told  sync.Mutex
	bytes atomic.Uint64
}

// get returns the limit.
func (x *limit) get() uint64 { return x.bytes.Load() }

// answerLimit holds what this host sends to the others to a rate, and tells the others. It is an
// HTTP handler, as those in control.go: it runs on the goroutine of its request, and waits for the
// engine's thread.
func (l *launcher) answerLimit(w http.ResponseWriter, r *http.Request) {
	var ask api.Limit
	if !readControl(w, r, &ask, &ask.Who) {
		return
	}
	switch {
	case ask.Bytes == nil:
		sendError(w, http.StatusBadRequest, fmt.Errorf(
			"bytes: none are given; say how many a second, up to %d, or 0 for no limit",
			uint64(api.MaxLimit)))
		return
	case *ask.Bytes > api.MaxLimit:
		sendError(w, http.StatusBadRequest, fmt.Errorf(
			"bytes: %d a second is no limit; give up to %d, or 0 for none", *ask.Bytes,
			uint64(api.MaxLimit)))
		return
	}
	s, ok := l.awaitLed(w, r)
	if !ok {
		return
	}
	if err := l.applyLimit(*ask.Bytes, ask.Who, func() {
		for _, host := range l.registry.allHosts(s.HostNames()) {
			if host != l.registry.hostName() {
				l.sendTo(host, &message{Limit: &limitMessage{*ask.Bytes}})
			}
		}
	}); err != nil {
		sendError(w, http.StatusConflict, err)
		return
	}
	sendJSON(w, l.describeJob(s))
}

// applyLimit holds what this host sends to the others to a rate, and has tell tell other hosts of
// it. Any goroutine may call it but the engine's thread, for which it waits.
func (l *launcher) applyLimit(bytes uint64, who string, tell func()) error {
	l.limit.told.Lock()
	defer l.limit.told.Unlock()
	if err := l.setLimit(bytes, who); err != nil {
		return err
	}
	tell()
	return nil
}

// tellLimit tells a host, which has offered room, of the limit. known says that it may have heard
// of another one from another head. It waits for the engine's thread.
func (l *launcher) tellLimit(host string, known bool) {
	l.limit.told.Lock()
	defer l.limit.told.Unlock()
	if bytes := l.limit.get(); bytes > 0 || known {
		l.sendTo(host, &message{Limit: &limitMessage{bytes}})
	}
}

// setLimit holds what this host sends to the others to a rate, and says so on the terminal where
// that is another one than before. l.limit.told is held.
func (l *launcher) setLimit(bytes uint64, who string) error {
	if bytes == 0 && l.limit.get() == 0 {
		return nil
	}
	if err := l.agent.LimitSending(float64(bytes)); err != nil {
		return err
	}
	if before := l.limit.bytes.Swap(bytes); before == bytes {
		return nil
	}
	text := who + " ends the limit of what this host sends"
	if bytes > 0 {
		text = fmt.Sprintf("%s holds what this host sends to %s/s", who, plural.Bytes(int64(bytes)))
	}
	l.console.Note(text)
	return nil
}
