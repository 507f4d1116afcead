package agent_test

import (
	"context"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/agent"
	"github.com/shoal-ml/shoal/client"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/setting"
)

// All-reduces of a job on several hosts take another route while it runs, because of what they
// took: the change is told with its reason, and the results stay right on all hosts. It is so too
// where a step has several: gradients and a loss, that begin together, or while the rest of the
// step is still in the making.
func TestRoutesChangeWhileTheJobRuns(t *testing.T) {
	for _, step := range []recurring{
		{name: "alone", class: "1 MiB", n: head.EarlyBytes / 4, arrays: 1},
		{name: "with a loss", class: "256 KiB", n: head.EarlyBytes / 16, arrays: 1, loss: true},
		{name: "ahead", class: "1 MiB", n: head.EarlyBytes / 4, arrays: 1, loss: true, ahead: true},
		{name: "several ahead", class: "1 MiB", n: head.EarlyBytes / 4, arrays: 3, loss: true,
			ahead: true},
	} {
		t.Run(step.name, step.runUntilRouted)
	}
}

// A host is lost while it is decided that its cable is slow: what is told names that host, and not
// the one that is counted in its place then.
func TestTheSlowCableIsThatOfAHostThatIsLost(t *testing.T) {
	f, c := startElasticJobOnHosts(t, 3, []int{1, 1, 1},
		client.Data{Samples: 400, Batch: 20, Epochs: 2, Seed: 7})
	measured, lost := make(chan struct{}), make(chan struct{})
	agent.SetSlowCable(c.head, 3, 1, func() {
		close(measured)
		<-lost
	})
	told := make(chan string, 1) // why the first route that changes does
	f.onEachEvent(func(e agent.Event) {
		if e.What == "route" {
			select {
			case told <- e.Because:
			default:
			}
		}
	})
	var slow string
	var died atomic.Int64 // the step in which it does; slow is set by then
	var once sync.Once
	for range 3 {
		s := <-c.started
		f.runWorkerAt(s.agent, s.number, s.token, func(_ *elasticJob, _, step int) error {
			at := died.Load()
			switch {
			case s.number == 1 && step >= 3:
				<-measured
				slow = s.agent.Host()
				c.hub.Kill(fabric.Host(slow))
				died.Store(int64(step))
				return errHostDies
			case s.number == 0 && at > 0 && int64(step) >= at+2: // a step was made without it
				once.Do(func() { close(lost) })
			}
			return nil
		})
	}
	f.awaitAndVerify(0, 2)
	if why := <-told; why != "the test; the cable of "+slow+" is slow" {
		t.Errorf("%q is told, and %s was slow", why, slow)
	}
}

// maxLooks is how often it is looked at most for what is told four times a second.
const maxLooks = 1 << 21

// recurring is a step that is made again and again.
type recurring struct {
	name, class string // of the subtest, and of its all-reduces as events tell it
	n, arrays   int    // elements of an array, and arrays of a step
	loss        bool   // an all-reduce of one more element ends the step
	ahead       bool   // but only once something of the arrays was sent
}

// runUntilRouted makes the step on three hosts until the head tells of another route, and checks
// that event.
func (r recurring) runUntilRouted(t *testing.T) {
	events, sent := make(chan agent.Event, 1000), newCounter()
	c := startHostsOn(t, sent.wrap, 3, []int{1, 1, 1}, agent.Orders{Event: func(e agent.Event) {
		events <- e
	}})
	g := group.New(context.Background())
	enough := make(chan struct{})
	for range 3 {
		s := <-c.started
		j := joinWithToken(t, s.agent, s.number, s.token)
		g.Go(fmt.Sprintf("worker %d", s.number), func(ctx context.Context) error {
			defer s.agent.WorkerFinished(s.number, "exited with code 0")
			return r.makeSteps(ctx, j, sent, enough)
		})
	}
	for e := range events {
		if e.What != "route" {
			continue
		}
		c := e.Change
		if c == nil || !strings.HasPrefix(e.String(), "change r1 at step ") ||
			!strings.Contains(e.Because, "all-reduces of "+r.class+" over 3 hosts took ") ||
			c.Phase != setting.Entered || !strings.HasPrefix(c.To, "route=") ||
			!c.Predicted.IsKnown() {
			t.Errorf("%v", e)
		}
		break
	}
	if !r.ahead && !r.loss { // hosts tell the head what their links carry, while they send
		looks := 0
		for ; agent.Cables(c.head) == nil && looks < maxLooks; looks++ {
			runtime.Gosched()
		}
		if looks == maxLooks {
			t.Error("hosts do not tell the head what their links carry")
		}
	}
	close(enough)
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

// makeSteps makes steps and checks every element, until enough is closed, which rank 0 tells the
// others. It runs on the goroutine of a worker, and returns what is wrong.
func (r recurring) makeSteps(ctx context.Context, j *client.Job, sent *counter,
	enough <-chan struct{}) error {
	arrays := make([][]float32, r.arrays)
	for step, goesOn := 0, true; goesOn; step++ {
		for i := range arrays {
			arrays[i] = make([]float32, r.n)
			fillWith(arrays[i], j.Rank()+step%1000)
		}
		if j.Rank() == 0 {
			select {
			case <-enough:
				arrays[0][0] = -10000
			default:
			}
		}
		if err := r.makeStep(ctx, j, sent, arrays, step); err != nil {
			return err
		}
		goesOn = arrays[0][0] >= 0
		for _, x := range arrays {
			for i, v := range x[1:] {
				if want := float32(3 + 3*(step%1000)); v != want {
					return fmt.Errorf("element %d is %v, want %v", i+1, v, want)
				}
			}
		}
	}
	return nil
}

// makeStep makes one step, whose number is step, and checks the loss. The sums are in arrays.
func (r recurring) makeStep(ctx context.Context, j *client.Job, sent *counter, arrays [][]float32,
	step int) error {
	if !r.loss {
		return client.AllReduce(ctx, j, arrays[0], collective.Sum)
	}
	var begun []*client.Handle
	for _, x := range arrays {
		begun = append(begun, client.AllReduceAsync(j, x, collective.Sum, client.More()))
	}
	if r.ahead {
		// what all hosts send in the steps before
		sent.awaitMoreThan(step * 2 * (3 - 1) * 4 * (r.n*r.arrays + 1))
	}
	loss := []float32{float32(j.Rank())}
	if err := client.AllReduce(ctx, j, loss, collective.Sum, client.EndStep()); err != nil {
		return err
	}
	if loss[0] != 0+1+2 {
		return fmt.Errorf("the loss is %v", loss[0])
	}
	for _, h := range begun {
		if err := h.Wait(ctx); err != nil {
			return err
		}
	}
	return nil
}

// counter counts the bytes of tensors that the hosts send. Any goroutine may use it.
type counter struct {
	mu    sync.Mutex // guards bytes and links
	grown sync.Cond  // on mu: signalled when bytes has grown
	bytes int
	links map[[2]fabric.Host]uint64 // bytes by sender and receiver
}

// newCounter returns a counter of 0.
func newCounter() *counter {
	n := &counter{links: map[[2]fabric.Host]uint64{}}
	n.grown.L = &n.mu
	return n
}

// wrap returns a network that counts what m sends.
func (n *counter) wrap(m fabric.Network) fabric.Network { return &counting{m, n} }

// awaitMoreThan blocks until more than so many bytes were sent since newCounter.
func (n *counter) awaitMoreThan(bytes int) {
	n.mu.Lock()
	defer n.mu.Unlock()
	for n.bytes <= bytes {
		n.grown.Wait()
	}
}

// counting is a network whose pieces counter counts.
type counting struct {
	fabric.Network
	counter *counter
}

// SendPiece sends a piece and counts it.
func (m *counting) SendPiece(to fabric.Host, p fabric.Piece, payload []byte) {
	m.Network.SendPiece(to, p, payload)
	m.counter.mu.Lock()
	defer m.counter.mu.Unlock()
	m.counter.bytes += len(payload)
	m.counter.links[[2]fabric.Host{m.Self(), to}] += uint64(len(payload))
	m.counter.grown.Broadcast()
}

// Sent implements fabric.Counter: links carry a gigabyte in a second.
func (m *counting) Sent() map[fabric.Host][]fabric.Sent {
	m.counter.mu.Lock()
	defer m.counter.mu.Unlock()
	found := map[fabric.Host][]fabric.Sent{}
	for link, bytes := range m.counter.links {
		if link[0] == m.Self() {
			found[link[1]] = []fabric.Sent{{Bytes: bytes, Busy: time.Duration(bytes)}}
		}
	}
	return found
}
