package keeper

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/shoal-ml/shoal/fabric"
	"github.com/shoal-ml/shoal/fabric/tcp"
	"github.com/shoal-ml/shoal/internal/version"
)

// dropper is a head that ends each link on which a host says who it is.
type dropper struct {
	headHandler
	ready   chan struct{}
	network *tcp.Network
}

// Message implements fabric.Handler.
func (d *dropper) Message(from fabric.Host, _ []byte) {
	<-d.ready
	d.network.Drop(from, errors.New("the cellar is full"))
}

// Down implements fabric.Handler.
func (*dropper) Down(fabric.Host, error) {}

// Why a link ended before the host was taken is what pool join says, and not that nobody answers.
func TestJoinSaysWhy(t *testing.T) {
	h := newHost1(t)
	head := &dropper{ready: make(chan struct{})}
	network, err := tcp.Create(tcp.Config{Job: linkName("lab"), Name: "head",
		Listen: "127.0.0.1:0", Version: version.Version}, head)
	if err != nil {
		t.Fatal(err)
	}
	defer network.Close()
	head.network = network
	close(head.ready)
	err = Join(context.Background(), Config{Name: "lab", Host: "two", Slots: 1, Dir: h.dir,
		Notes: new(notes), Links: Links{Machine: "12345678", Listen: "127.0.0.1:0",
			KeepAuthority: func([]byte) error { return nil }, Join: network.Addr(),
			Token: network.Token(time.Hour)}}, func() {})
	if err == nil || !strings.Contains(err.Error(), "the cellar is full") {
		t.Errorf("got %v", err)
	}
}
