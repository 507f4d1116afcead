package nats

import (
	"errors"
	"testing"

	"github.com/shoal-ml/shoal/store"
	"github.com/shoal-ml/shoal/store/storetest"
)

// patient is a server elsewhere whose clients do not ask whether it is there.
type patient struct{ *elsewhere }

// Open implements storetest.Server: it returns a new client.
func (p patient) Open(testing.TB) store.Store { return ConnectLater(p.servers) }

// TestLater runs the suite of package storetest on a store that connects later.
func TestLater(t *testing.T) {
	storetest.Run(t, func(t *testing.T) storetest.Server { return patient{startElsewhere(t, nil)} })
}

// TestLaterThanTheServer: the server comes when the store has been asked already.
func TestLaterThanTheServer(t *testing.T) {
	e := startElsewhere(t, nil)
	e.Stop(t)
	s := ConnectLater(e.servers)
	defer s.Close()
	if _, err := s.Get(t.Context(), "a"); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	e.Start(t)
	if _, err := s.Create(t.Context(), "a", nil); err != nil {
		t.Error(err)
	}
}
