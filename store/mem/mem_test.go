package mem_test

import (
	"testing"

	"github.com/shoal-ml/shoal/store"
	"github.com/shoal-ml/shoal/store/mem"
	"github.com/shoal-ml/shoal/store/storetest"
)

// server is a store in memory as the suite takes it.
type server struct{ *mem.Server }

// Open implements storetest.Server.
func (s server) Open(testing.TB) store.Store { return s.Server.Open() }

// Start implements storetest.Server.
func (s server) Start(testing.TB) { s.Fail(nil) }

// Stop implements storetest.Server.
func (s server) Stop(testing.TB) {
	s.Fail(func(mem.Op, string) mem.Fate { return mem.Lost })
}

func TestStore(t *testing.T) {
	storetest.Run(t, func(*testing.T) storetest.Server { return server{mem.New()} })
}
