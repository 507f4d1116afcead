package launcher

import (
	"fmt"
	"net/http"
	"sync/atomic"

	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/internal/plural"
)

// The limit of what this host sends to the other hosts of the job, which a request to the control
// socket sets, here or on the host that leads.

// limit is how many bytes of data a second this host may send to the others of the job. Any
// goroutine may call its methods. Zero = there is no limit.
type limit struct{ bytes atomic.Uint64 }

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
	if err := l.applyLimit(*ask.Bytes, ask.Who); err != nil {
		sendError(w, http.StatusConflict, err)
		return
	}
	for _, host := range l.registry.allHosts(s.HostNames()) {
		if host != l.registry.hostName() {
			l.sendTo(host, &message{Limit: &limitMessage{*ask.Bytes}})
		}
	}
	sendJSON(w, l.describeJob(s))
}

// applyLimit holds what this host sends to the others to a rate, and says so on the terminal where
// that is another one than before. Any goroutine may call it.
func (l *launcher) applyLimit(bytes uint64, who string) error {
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
