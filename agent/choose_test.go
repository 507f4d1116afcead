package agent

import (
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/cost"
)

// What a tuner has chosen is for all-reduces of its class, in a job that wants it.
func TestChoose(t *testing.T) {
	const bytes = 1 << 20
	better := collective.Route{Strategy: collective.Doubling{}, Piece: collective.MinPiece}
	r := routes{chosen: map[cost.Class]collective.Route{cost.ClassOf(3, bytes): better}}
	for _, c := range []struct {
		kind         collective.Kind
		hosts, bytes int
		want         collective.Route
	}{
		{collective.AllReduce, 3, bytes, better},
		{collective.AllReduce, 4, bytes, collective.DefaultRoute(bytes)},
		{collective.AllReduce, 3, 2 * bytes, collective.DefaultRoute(2 * bytes)},
		{collective.Broadcast, 3, bytes, collective.DefaultRoute(bytes)},
	} {
		if got := r.choose(c.kind, c.hosts, c.bytes); got != c.want {
			t.Errorf("%v of %d bytes over %d hosts goes %v, want %v", c.kind, c.bytes, c.hosts, got,
				c.want)
		}
	}
	r.fixed = true
	if got := r.choose(collective.AllReduce, 3, bytes); got != collective.DefaultRoute(bytes) {
		t.Errorf("routes are fixed, and an all-reduce goes %v", got)
	}
}
