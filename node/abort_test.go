package node

import (
	"testing"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/topo"
)

// busy is a mesh whose payloads are in use until somebody says otherwise.
type busy struct {
	fabric.Mesh
	asked []func()
}

func (b *busy) Unused(f func()) { b.asked = append(b.asked, f) }

// The memory of a worker stays as long as pieces of a transfer that was aborted may be sent from it, and no longer: that of a reshape too.
func TestAbortedTransferLetsMemoryGo(t *testing.T) {
	e, err := newEngine(&lanes{shares: make([]share, 1)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	mesh, m := &busy{}, &worker{id: 3, over: true}
	e.byID[m.id] = m
	for id := range uint64(2) {
		e.transfers.add(&transfer{id: id, mesh: mesh, workers: []topo.Worker{m.id}, settled: id > 0})
	}
	for id := range uint64(2) {
		e.abort(id)
		e.abort(id) // it is gone already
	}
	for range 2 {
		if m.reap() {
			t.Fatal("the memory is freed while it is in use")
		}
		mesh.asked[0]()
		mesh.asked = mesh.asked[1:]
		e.runInbox()
	}
	if !m.reap() || len(mesh.asked) > 0 {
		t.Error("the memory is not freed")
	}
}
