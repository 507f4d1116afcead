package launcher

import (
	"fmt"
	"io"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/agent"
	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/launcher/proc"
)

// limited is the agent of a host whose limit changes, which notes what it tells the others.
type limited struct {
	follower
	during func() // called whenever the limit changes or is told
	sent   []string
}

// LimitSending takes any limit.
func (l *limited) LimitSending(float64) error {
	l.during()
	return nil
}

// SendToLauncher notes a message.
func (l *limited) SendToLauncher(host string, b []byte) {
	l.during()
	l.sent = append(l.sent, fmt.Sprintf("%s %s", host, b))
}

// While a limit is set, and other hosts are told of it, nobody sets another one: the hosts could
// hear of the two in another order than this one.
func TestOneLimitAtATime(t *testing.T) {
	a := &limited{follower: follower{status: agent.Status{Head: "a"}}}
	l := &launcher{agent: a, registry: newRegistry("a", 1), reporter: newReporter(nil, nil),
		console: proc.NewConsole(io.Discard, io.Discard, 1, false)}
	l.registry.setHost("a")
	l.registry.setJob(&jobMessage{})
	l.registry.addOffer("b", offerMessage{})
	a.during = func() {
		if l.limit.told.TryLock() {
			l.limit.told.Unlock()
			t.Error("another limit can come between")
		}
	}
	answer := httptest.NewRecorder()
	l.answerLimit(answer, httptest.NewRequestWithContext(t.Context(), "POST", api.PathLimit,
		strings.NewReader(`{"bytes":7,"who":"ada"}`)))
	if answer.Code != 200 {
		t.Errorf("%d %s", answer.Code, answer.Body)
	}
	l.tellLimit("c", false)
	if want := []string{`b {"limit":{"bytes":7}}`, `c {"limit":{"bytes":7}}`}; !slices.Equal(a.sent,
		want) {
		t.Errorf("%q", a.sent)
	}
}
