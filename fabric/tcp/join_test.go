package tcp

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/fabrictest"
	"github.com/shoal-ml/shoal/internal/group"
)

// TestHeadGone: who made the job is not needed any more to join it, and its tokens stay good.
func TestHeadGone(t *testing.T) {
	j := newJob(t, Config{})
	token := j.a.Token(time.Hour)
	j.a.Crash()
	j.atB.WaitDown("a")
	atC := fabrictest.NewRecorder(t)
	c, err := Join(t.Context(), j.b.Addr(), token, j.newcomerConfig(), atC)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	atC.WaitUp("b")
	config := j.newcomerConfig()
	config.Name = "a" // the head's, which is not given again
	d, err := Join(t.Context(), c.Addr(), c.Token(time.Minute), config, fabrictest.NewRecorder(t))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if d.Self() != "a-2" || d.Job() != "digits" {
		t.Errorf("the fourth is %s of job %s", d.Self(), d.Job())
	}
	atC.WaitUp("a-2")
	j.atB.WaitUp("a-2")
}

// TestLongNameAgain: a host whose name has as many letters as one may have joins once more when its
// name is used, under one that is no longer.
func TestLongNameAgain(t *testing.T) {
	j := newJob(t, Config{})
	config := j.newcomerConfig()
	config.Name = fabric.Host(strings.Repeat("n", maxName))
	j.join(config, fabrictest.NewRecorder(t))
	again := j.join(config, fabrictest.NewRecorder(t))
	if want := config.Name[:maxName-2] + "-2"; again.Self() != want {
		t.Errorf("the second is %s, want %s", again.Self(), want)
	}
	j.atA.WaitUp(again.Self())
}

// TestLostWhileJoining: an agent that died a moment ago, and is in the lists still, keeps nobody
// out.
func TestLostWhileJoining(t *testing.T) {
	j := newJob(t, Config{})
	j.b.Crash()
	c := j.join(j.newcomerConfig(), fabrictest.NewRecorder(t))
	j.atA.WaitUp(c.Self())
}

// TestUnreachable: an agent that the others reach and the newcomer does not is an error that names
// it.
func TestUnreachable(t *testing.T) {
	j := newJob(t, Config{})
	deaf, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	deaf.Close()
	config := j.newcomerConfig()
	config.Name, config.Advertise = "behind-a-wall", deaf.Addr().String()
	j.join(config, fabrictest.NewRecorder(t))
	atD := fabrictest.NewRecorder(t)
	_, err = Join(t.Context(), j.a.Addr(), j.a.Token(time.Minute), j.newcomerConfig(), atD)
	wantError(t, err, "behind-a-wall at "+deaf.Addr().String(), "must be", "firewall")
	atD.WaitDown("a") // those that it had a link with
	j.checkUnhurt()
}

// TestHeardOfLate: an agent that a newcomer hears of after it has tried another one for long is
// tried for as long as that.
func TestHeardOfLate(t *testing.T) {
	tried, begun := attempts{}, time.Now()
	early, late := agent{Host: "early"}, agent{Host: "late"}
	lost := errors.New("connection refused")
	for _, c := range []struct {
		after       time.Duration
		list        []agent
		errs        []error
		again, over bool // as the attempts have it: all were tried before, and one for too long
	}{
		{0, []agent{early}, []error{lost}, false, false},
		{reachTime - 1, []agent{early}, []error{lost}, true, false},
		{reachTime, []agent{early, late}, []error{nil, lost}, false, false}, // early dials itself
		{2*reachTime - 1, []agent{late}, []error{lost}, true, false},
		{2 * reachTime, []agent{early, late}, []error{nil, lost}, true, true},
	} {
		again := tried.haveAll(c.list)
		over := tried.add(c.list, c.errs, begun.Add(c.after))
		if again != c.again || over != c.over {
			t.Errorf("after %v: again %t, over %t; expected %t, %t", c.after, again, over, c.again,
				c.over)
		}
	}
}

// TestJoinAtOnce: newcomers that join at the same moment through different agents find each other.
func TestJoinAtOnce(t *testing.T) {
	j := newJob(t, Config{})
	const n = 6
	var recorders [n]*fabrictest.Recorder
	var networks [n]*Network
	g := group.New(t.Context())
	for i := range n {
		recorders[i] = fabrictest.NewRecorder(t)
		through := []*Network{j.a, j.b}[i%2]
		g.Go("join", func(ctx context.Context) (err error) {
			config := j.newcomerConfig()
			config.Name = fabric.Host(fmt.Sprintf("n%d", i))
			networks[i], err = Join(ctx, through.Addr(), through.Token(time.Minute), config,
				recorders[i])
			return err
		})
	}
	err := g.Wait()
	for _, m := range networks {
		if m != nil {
			defer m.Close()
		}
	}
	if err != nil {
		t.Fatal(err)
	}
	for i, r := range recorders {
		r.WaitUp("a")
		r.WaitUp("b")
		for k := range n {
			if k != i {
				r.WaitUp(fabric.Host(fmt.Sprintf("n%d", k)))
			}
		}
	}
}

// TestDialledByBoth: a newcomer that dials an agent whose own call is on its way, or is a link
// already, has not failed to reach it, however long it has tried to.
func TestDialledByBoth(t *testing.T) {
	j := newJob(t, Config{})
	setState := func(m *Network, peer fabric.Host, to state) {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.peers[peer].state = to
	}
	for _, at := range []state{stateDialling, stateAccepting, stateUp} {
		setState(j.a, "b", at)
		setState(j.b, "a", stateHeard)
		agents := []agent{{"a", j.a.Addr()}}
		_, errs := j.b.dialEach(t.Context(), agents)
		if todo, _ := j.b.unlinkedAgents(agents); errs[0] != nil || len(todo) != 1 {
			t.Errorf("in state %d of the other: %v; still to be linked are %v", at, errs, todo)
		}
	}
}

// TestSameNameAtOnce: of newcomers that ask two agents for one name at the same moment, each gets a
// name of its own or is told to join again.
func TestSameNameAtOnce(t *testing.T) {
	j := newJob(t, Config{})
	var networks [2]*Network
	var errs [2]error
	g := group.New(t.Context())
	for i, through := range []*Network{j.a, j.b} {
		g.Go("join", func(ctx context.Context) error {
			networks[i], errs[i] = Join(ctx, through.Addr(), through.Token(time.Minute),
				j.newcomerConfig(),
				fabrictest.NewRecorder(t))
			return nil
		})
	}
	g.Wait()
	for i, m := range networks {
		if m == nil {
			wantError(t, errs[i], "belongs to another agent", "join again")
			continue
		}
		defer m.Close()
	}
	if networks[0] != nil && networks[1] != nil && networks[0].Self() == networks[1].Self() {
		t.Errorf("both are %s", networks[0].Self())
	}
	j.checkUnhurt()
}

// TestJoinGivenUp: a join whose context has ended fails, and hurts nobody.
func TestJoinGivenUp(t *testing.T) {
	j := newJob(t, Config{})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := Join(ctx, j.a.Addr(), j.a.Token(time.Minute), j.newcomerConfig(),
		fabrictest.NewRecorder(t)); err == nil || !strings.Contains(err.Error(), "canceled") {
		t.Errorf("joining in a context that has ended: %v", err)
	}
	j.checkUnhurt()
}

// TestAdvertised: what an agent was told to advertise is completed by its port or its IP.
func TestAdvertised(t *testing.T) {
	ten := net.IPv4(10, 0, 0, 7)
	for _, c := range []struct{ told, want string }{
		{"", "10.0.0.7:4444"},
		{"gpu7.example", "gpu7.example:4444"},
		{"gpu7.example:99", "gpu7.example:99"},
		{"192.0.2.1", "192.0.2.1:4444"},
		{"2001:db8::1", "[2001:db8::1]:4444"},
		{"[2001:db8::1]:99", "[2001:db8::1]:99"},
	} {
		if got := advertisedAddress(c.told, 4444, ten); got != c.want {
			t.Errorf("told %q it advertises %q, want %q", c.told, got, c.want)
		}
	}
}
