package operator

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/internal/group"
)

// crowd is an Asker of many pods, of which one leads the job and the others do not answer. That
// which leads does so when enough are asked at the same time.
type crowd struct {
	leads string // its address
	stuck string // address of one that says that the job is stuck; "" = there is none
	when  int    // how many are asked then

	mu       sync.Mutex // guards what follows
	enough   chan struct{}
	asks     int
	now, max int // that are asked now, and that were at most
}

// Ask implements Asker.
func (c *crowd) Ask(ctx context.Context, ip, _ string) (control.Job, error) {
	c.mu.Lock()
	c.asks++
	c.now++
	if c.max = max(c.max, c.now); c.now == c.when {
		close(c.enough)
	}
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.now--
		c.mu.Unlock()
	}()
	switch ip {
	case "first":
		return control.Job{}, errors.New("it does not lead the job")
	case c.stuck:
		return control.Job{Size: 1, State: control.Stuck}, nil
	case c.leads:
		select {
		case <-c.enough:
			return control.Job{Size: 7}, nil
		case <-ctx.Done():
		}
	}
	<-ctx.Done()
	return control.Job{}, ctx.Err()
}

// Park implements Asker.
func (c *crowd) Park(context.Context, string, string) error { return nil }

// Lost implements Asker.
func (c *crowd) Lost(context.Context, string, string, string) error { return nil }

// TestAsk asks the pods of a job of which most do not answer: so many at a time as there may be,
// and none any more when one has answered. Where that which led the job last answers, it is the
// only one that is asked.
func TestAsk(t *testing.T) {
	var at []string
	for i := range 40 {
		at = append(at, fmt.Sprint("pod ", i))
	}
	for _, x := range []struct {
		crowd *crowd
		first string
		asks  int
	}{
		{&crowd{leads: "pod 0", when: 1}, "pod 0", 1},
		{&crowd{leads: "pod 8", when: askAtOnce}, "first", 1 + askAtOnce},
		{&crowd{leads: "pod 9", stuck: "pod 2", when: askAtOnce}, "first", 2 + askAtOnce},
	} {
		x.crowd.enough = make(chan struct{})
		at[0] = x.first
		told := (&Reconciler{Asker: x.crowd}).ask(t.Context(), at, "token")
		x.crowd.mu.Lock()
		if told.ip != x.crowd.leads || told.job.Size != 7 || !told.live.Answers ||
			told.live.Waiting || x.crowd.asks != x.asks || x.crowd.now != 0 ||
			x.crowd.max != x.crowd.when {
			t.Errorf("%s leads: %s has answered, %d asks, %d at once, %d still", x.crowd.leads,
				told.ip, x.crowd.asks, x.crowd.max, x.crowd.now)
		}
		x.crowd.mu.Unlock()
	}
}

// waiters is an Asker of pods that wait for a job to join, but for some.
type waiters struct{ but string }

// Ask implements Asker.
func (w waiters) Ask(_ context.Context, ip, _ string) (control.Job, error) {
	if ip == w.but {
		return control.Job{}, errors.New("connection refused")
	}
	return control.Job{}, errWaiting
}

// Park implements Asker.
func (waiters) Park(context.Context, string, string) error { return nil }

// Lost implements Asker.
func (waiters) Lost(context.Context, string, string, string) error { return nil }

// TestAskWaiting has all pods of a job wait for one to join, or all but one that does not answer,
// which is silence.
func TestAskWaiting(t *testing.T) {
	at := strings.Fields("a b c d e f g h i j k l m")
	for but, want := range map[string]bool{"": true, "a": false, "k": false} {
		if got := (&Reconciler{Asker: waiters{but}}).ask(t.Context(), at, "x"); got.live.Waiting !=
			want || got.live.Silent == want || got.live.Answers {
			t.Errorf("all wait but %q: %+v", but, got.live)
		}
	}
}

// TestAskStuck has a job be stuck only if no pod is left out of which nobody knows whether it goes
// on: one that does not answer, or says who else leads.
func TestAskStuck(t *testing.T) {
	at := []string{"a", "b", "c"}
	for but, want := range map[string]bool{"": true, "a": false, "c": false} {
		live := (&Reconciler{Asker: stuckPods{waiters{but}}}).ask(t.Context(), at, "x").live
		if !live.Answers || live.Stuck != want || live.Silent {
			t.Errorf("all are stuck but %q: %+v", but, live)
		}
	}
}

// stuckPods is an Asker of pods of a job that is stuck, but for one that does not answer.
type stuckPods struct{ waiters }

// Ask implements Asker.
func (s stuckPods) Ask(_ context.Context, ip, _ string) (control.Job, error) {
	if ip == s.but {
		return control.Job{}, errors.New("connection refused")
	}
	return control.Job{State: control.Stuck}, nil
}

// TestLost has pods vanish: the others are told, once, by the name that the host has in the job. A
// pod that has only lost its labels is no host that is gone.
func TestLost(t *testing.T) {
	c := newCluster(t, newJob(example))
	c.asker.job.Head = "machine" // which has begun the job
	c.change(size(4))
	c.reconcile(6)
	told := func(want string) {
		t.Helper()
		c.reconcile(3)
		c.asker.mu.Lock()
		defer c.asker.mu.Unlock()
		if got := strings.Join(c.asker.lost, ", "); got != want {
			t.Errorf("pods were told %q, want %q", got, want)
		}
		c.asker.lost = nil
	}
	c.remove("big-1-1")
	told("big-1-1, big-1-1, big-1-1")
	c.remove("big-1-0")
	told("machine, machine, machine")
	for _, p := range c.pods() {
		if p.Name == "big-1-2" {
			delete(p.Labels, LabelJob)
			c.must(c.api.Update(t.Context(), &p))
		}
	}
	told("")
	c.change(size(2)) // those that leave are not lost
	told("")
}

// TestAskable has one of three pods that run asked first, and another one not at all, whose time to
// end is over.
func TestAskable(t *testing.T) {
	j := newJob(example)
	j.Status.Run, j.Status.Host = 1, "c"
	now := time.Now()
	var pods []corev1.Pod
	for i, name := range []string{"a", "b", "c", "d"} {
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name,
			Labels: map[string]string{labelRun: "1"}}}
		p.Status.Phase, p.Status.PodIP = corev1.PodRunning, name
		if i%2 == 1 {
			p.DeletionTimestamp = &metav1.Time{Time: now.Add(time.Duration(i-2) * time.Second)}
		}
		pods = append(pods, p)
	}
	if got := strings.Join(askable(j, pods, now), " "); got != "c a d" {
		t.Errorf("asked are %s, want c a d", got)
	}
}

// TestHostilePod has a pod send the operator elsewhere, and answer without end: neither is done.
func TestHostilePod(t *testing.T) {
	ip := fmt.Sprintf("127.252.%d.%d", os.Getpid()/250%250, 1+os.Getpid()%250)
	listener, err := net.Listen("tcp", net.JoinHostPort(ip, fmt.Sprint(portStatus)))
	if err != nil {
		t.Fatal(err)
	}
	endless, followed := false, false
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.URL.Path == "/elsewhere":
			followed = true
		case !endless:
			http.Redirect(w, r, "/elsewhere", http.StatusTemporaryRedirect)
			return
		}
		_, _ = w.Write([]byte(`{"job":"`))
		for range 2 * maxAnswer / 1024 {
			_, _ = w.Write([]byte(strings.Repeat("x", 1024))) // who has gone needs no more
		}
		_, _ = w.Write([]byte(`"}`))
	})}
	g := group.New(t.Context())
	g.Go("pod", func(context.Context) error {
		if err := server.Serve(listener); !errors.Is(err, http.ErrServerClosed) {
			return err
		}
		return nil
	})
	for range 2 {
		if j, err := NewHTTPAsker().Ask(t.Context(), ip, "token"); err == nil || followed {
			t.Errorf("endless %v: the answer is taken: %d bytes, followed %v", endless,
				len(j.Name), followed)
		}
		endless = true
	}
	if err := errors.Join(server.Close(), g.Wait()); err != nil {
		t.Error(err)
	}
}
