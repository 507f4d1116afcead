package agent

import (
	"crypto/subtle"
	"fmt"

	api "github.com/shoal-ml/shoal/api/worker"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/fabric/arena"
	"github.com/shoal-ml/shoal/topo"
)

// workerSession is what the agent knows of a worker that this host starts, until both its process
// and its conversation have ended. Agent.mu guards it.
type workerSession struct {
	token  string      // secret that the worker must show
	late   bool        // the job ran already when the worker was started
	joined bool        // the worker has joined, and may have left since
	ended  bool        // its process is gone
	conn   *arena.Conn // its open conversation; nil = it has not joined yet, or the end was heard
}

// Who joins as which worker. The methods below run on goroutines of sessions, unless they say
// otherwise. Those that wait for the engine's thread must not be called there.

// authenticate checks that token is the secret of worker n. late says that the job ran already when
// the worker was started.
func (a *Agent) authenticate(n int, token string) (late bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	p := a.sessions[n]
	if p == nil {
		return false, &collective.FieldError{Field: "rank",
			Problem: fmt.Sprintf("%d is no worker that this host has started and that lives", n)}
	}
	if subtle.ConstantTimeCompare([]byte(token), []byte(p.token)) != 1 {
		return false, &collective.FieldError{Field: "token",
			Problem: fmt.Sprintf("not the one of rank %d: a worker gets it in %s from its launcher",
				n, api.EnvToken)}
	}
	return p.late, nil
}

// admit makes a worker known to the engine, which then owns m, and waits for the engine's thread. A
// second worker of the same number gets an error, after which the caller owns m. admit returns the
// size of the job that the worker is to know at first, and the generation.
func (a *Agent) admit(m *worker, c *arena.Conn, late bool) (size int, generation uint64,
	err error) {
	a.mu.Lock()
	p := a.sessions[int(m.id)]
	joins := p != nil && !p.joined
	if joins {
		p.joined, p.conn = true, c
	}
	a.mu.Unlock()
	switch {
	case p == nil: // since it has shown its token
		return 0, 0, fmt.Errorf("the process of rank %d of job %s has ended", m.id, a.cfg.Job)
	case !joins:
		return 0, 0, fmt.Errorf("rank %d of job %s has joined already: a rank joins once, and a "+
			"program that has left its job does not come back; another program that this "+
			"worker starts is a job of one without %s in its environment", m.id, a.cfg.Job,
			api.EnvSocket)
	}
	err = a.engine.runAndWait(func() {
		size, generation = a.driver.head.State().View.Size(), a.driver.generationNumber(1)
		a.engine.admit(m, late)
	})
	return size, generation, err
}

// workersOnHost counts the workers of this host that have not ended, whether they have joined or
// not. Any goroutine may call it.
func (a *Agent) workersOnHost() (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, p := range a.sessions {
		if !p.ended {
			n++
		}
	}
	return n
}

// endProcess registers that the process of a worker is gone: nobody joins as that worker any more.
// Any goroutine may call it.
func (a *Agent) endProcess(worker int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.sessions[worker]; p != nil {
		p.ended = true
		a.forgetIfOver(worker)
	}
}

// forgetIfOver removes what is known of a worker, which must be known, if both its process and its
// conversation have ended: a job may lose workers without end. a.mu is held.
func (a *Agent) forgetIfOver(worker int) {
	if p := a.sessions[worker]; p.ended && p.conn == nil {
		delete(a.sessions, worker)
	}
}

// cutOff hangs up on a worker from which nothing more is taken, tells it why, and logs it. It runs
// on the engine's thread.
func (a *Agent) cutOff(w topo.WorkerID, err error) {
	a.cfg.Log.Error("a worker is cut off", "job", a.cfg.Job, "host", a.Host(), "worker", w,
		"error", err)
	a.mu.Lock()
	defer a.mu.Unlock()
	if p := a.sessions[int(w)]; p != nil && p.conn != nil {
		_ = p.conn.HangUp(api.Tag(&api.ErrorReply{Problem: err.Error()}, 0))
	}
}
