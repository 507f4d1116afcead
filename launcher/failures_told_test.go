package launcher

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/agent"
)

// noting is an agent that notes what a launcher sends to others, and which failures it hears of.
// Methods that are not here panic.
type noting struct {
	hostAgent
	sent     []string // host and message
	failures []string
	onSend   func() // called once before a message is noted; nil = nothing is
}

// Status says nothing.
func (n *noting) Status() agent.Status { return agent.Status{} }

// SendToLauncher notes a message.
func (n *noting) SendToLauncher(host string, b []byte) {
	if f := n.onSend; f != nil {
		n.onSend = nil
		f()
	}
	n.sent = append(n.sent, fmt.Sprintf("%s %s", host, b))
}

// ReportFailedWorker records a failure.
func (n *noting) ReportFailedWorker(how string) { n.failures = append(n.failures, how) }

// The failure of a worker is told to policies once, by the host that leads then. A new head hears
// of it too, as of all that has happened, and does not take it for the effect of a change that is
// on trial now, unless nobody led when it happened.
func TestFailuresOfBefore(t *testing.T) {
	for before, want := range map[string][]string{"b": nil, "": {"worker 7 ended with code 1"}} {
		a := &noting{}
		l := &launcher{agent: a, registry: newRegistry("a", 0), reporter: newReporter(nil, nil)}
		l.registry.setLeader(before, nil)
		l.reportWorker(&message{Ended: &endedMessage{Worker: 7, Code: 1, Survived: true}})
		told := map[string]string{}
		if before != "" {
			told[before] = a.sent[0]
		}
		l.followLeader("c")
		if last := a.sent[len(a.sent)-1]; !strings.Contains(last, `"offer"`) {
			t.Errorf("the last that c hears is %s", last)
		}
		told["c"] = a.sent[len(a.sent)-2]
		for leader, text := range told {
			next := &noting{}
			head := &launcher{agent: next, registry: newRegistry(leader, 0),
				reporter: newReporter(nil, nil)}
			head.registry.setLeader(leader, nil)
			m, err := decodeMessage([]byte(text[len(leader)+1:]))
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			head.handleMessage("a", m)
			head.handleMessage("a", m) // once more, after another link: it is known
			expected := []string{"worker 7 ended with code 1"}
			if leader == "c" {
				expected = want
			}
			if diff := cmp.Diff(expected, next.failures); diff != "" {
				t.Errorf("%q led, %s leads and hears (-want +got): %s", before, leader, diff)
			}
		}
	}
}

// Another host may come to lead while the one before is told of a worker: it hears of that too.
func TestNewHeadHearsWhatTheOneBeforeIsTold(t *testing.T) {
	for want, m := range map[string]*message{
		`c {"joined":{"worker":7}}`: {Joined: &workerMessage{7}},
		`c {"ended":{"worker":7,"pid":0,"code":1,"seconds":0}}`: {
			Ended: &endedMessage{Worker: 7, Code: 1}},
	} {
		a := &noting{}
		l := &launcher{agent: a, registry: newRegistry("a", 0), reporter: newReporter(nil, nil)}
		l.registry.setLeader("b", nil)
		a.onSend = func() { l.followLeader("c") }
		l.reportWorker(m)
		if !slices.Contains(a.sent, want) {
			t.Errorf("%s is not among %q", want, a.sent)
		}
	}
}
