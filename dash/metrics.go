// Package dash shows runs to browsers and programs: a page of a run that goes on while the run does
// (OpenPage), a report that is one file (WriteReport), and metrics for Prometheus (Metrics). It
// reads the directory of the run and asks the launcher, by package watch/follow, and changes
// nothing. Status is another server, by which an operator parks the job and reports lost hosts.
package dash

import (
	"bytes"
	"context"
	"errors"
	"net/http"
	"sync"
	"time"

	"github.com/shoal-ml/shoal/client/control"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/watch/follow"
)

// Metrics of a run for Prometheus. Requests are answered on goroutines of their own.

// scrapePause is how long an answer to /metrics holds, so that who asks often costs no more.
const scrapePause = time.Second

// Metrics answers GET /metrics about a run in the text format of Prometheus. OpenMetrics makes one,
// and Close ends it. Any goroutine may use it.
type Metrics struct {
	group *group.Group
	addr  string

	mu   sync.Mutex // guards what follows, and is held while the run is read
	dir  string     // "" = the run has not begun
	run  *follow.Follower
	text []byte // the last answer
	at   time.Time
}

// OpenMetrics listens at HOST:PORT, and answers from now on, until ShowRun is called, that the run
// has not begun. flag is how the user has named the address, for the error.
func OpenMetrics(flag, address string) (*Metrics, error) {
	l, err := listen(flag, address)
	if err != nil {
		return nil, err
	}
	m := &Metrics{group: group.New(context.Background()), addr: l.Addr().String()}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", m.answer)
	m.group.Go("metrics", func(ctx context.Context) error {
		return serve(ctx, l, newHostGuard(address, mux))
	})
	return m, nil
}

// Addr is the address at which it listens.
func (m *Metrics) Addr() string { return m.addr }

// ShowRun has the answers be about the run in a directory. It does not wait for it to be read.
func (m *Metrics) ShowRun(dir string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.dir = dir
}

// Close ends the server, and waits for that. It is called once.
func (m *Metrics) Close() {
	m.group.Stop(nil)
	_ = m.group.Wait() // that it could not go on matters to nobody now
}

// answer answers GET /metrics.
func (m *Metrics) answer(w http.ResponseWriter, r *http.Request) {
	text, err := m.newestText(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
	w.Header().Set("X-Content-Type-Options", "nosniff")
	_, _ = w.Write(text) // who has gone needs no answer
}

// newestText returns the text of the newest numbers, which nobody changes any more.
func (m *Metrics) newestText(ctx context.Context) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.dir == "" {
		return nil, errors.New("the run has not begun yet")
	}
	if now := time.Now(); m.text == nil || now.Sub(m.at) >= scrapePause {
		if err := m.readRun(ctx, now); err != nil {
			return nil, err
		}
	}
	return m.text, nil
}

// readRun reads what is new in the run. m.mu is held.
func (m *Metrics) readRun(ctx context.Context, now time.Time) (err error) {
	if m.run == nil {
		live, err := control.Find(ctx, m.dir)
		if err != nil {
			live = nil // files of the run say something all the same
		}
		if m.run, err = follow.Open(m.dir, live, nil); err != nil {
			return err
		}
	}
	if err := m.run.Poll(ctx, now); err != nil {
		return err
	}
	var b bytes.Buffer
	if err := m.run.Run.WriteMetrics(&b); err != nil {
		return err
	}
	m.text, m.at = b.Bytes(), time.Now() // others wait, and asking the launcher may take long
	return nil
}
