package mem_test

import (
	"testing"

	"github.com/shoal-ml/shoal/store"
	"github.com/shoal-ml/shoal/store/mem"
	"github.com/shoal-ml/shoal/store/storetest"
)

// server is a store in memory as the suite takes it.
type server struct{ *mem.Server }

// Open implements storetest.Server: it returns a new client.
func (s server) Open(testing.TB) store.Store { return s.Server.Open() }

// Start implements storetest.Server: it makes the store reachable again.
func (s server) Start(testing.TB) { s.SetFaults(nil) }

// Stop implements storetest.Server: all calls are lost from now on.
func (s server) Stop(testing.TB) {
	s.SetFaults(func(mem.Op, string) mem.Fate { return mem.Lost })
}

// TestStore runs the suite of package storetest.
func TestStore(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Server { return server{mem.New()} })
}
