package nats

import (
	"context"
	"sync"

	"github.com/shoal-ml/shoal/store"
)

// later is a store on servers elsewhere that need not answer yet. Any goroutine may call its
// methods.
type later struct {
	client
	servers Servers

	mu     sync.Mutex // guards the fields below; held while a call connects
	found  *external  // nil = nobody has answered yet
	closed bool
}

// ConnectLater returns the store on NATS servers without asking whether they are there: the first
// call connects, and where it finds nobody, the next one. It is for who must not wait, such as an
// agent that may lead a job one day.
func ConnectLater(s Servers) store.Store {
	l := &later{servers: s}
	l.client = client{"at " + withoutSecrets(s.URL), fullServers, l.currentSession}
	return l
}

// currentSession returns a session for one call, and connects before the first. Other calls, and
// Close, wait meanwhile. It is client.use.
func (l *later) currentSession() (*session, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, errClosed
	}
	if l.found == nil {
		e, err := connect(context.Background(), l.servers)
		if err != nil {
			return nil, err
		}
		l.found = e
	}
	return l.found.currentSession()
}

// Close closes the connection, if there is one.
func (l *later) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.closed = true
	if l.found == nil {
		return nil
	}
	return l.found.Close()
}
