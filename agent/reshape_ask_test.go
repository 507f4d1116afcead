package agent

import (
	"testing"

	api "github.com/shoal-ml/shoal/api/control"
	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/decide"
)

// What a plan should take on links follows from all-reduces that were long enough to tell. Where
// none was, it is without links, and says so.
func TestPredictOnLinks(t *testing.T) {
	truth := cost.Model{Fixed: 1e-3, Alpha: 50e-6, Piece: 5e-6, Beta: 8 / 100e6,
		Gamma: 0.1e-9}
	r := &routes{chosen: map[cost.Class]collective.Route{}}
	ask := func(busiest int) api.Plan {
		p := api.Plan{Busiest: busiest, Copied: 1 << 20}
		fillInSeconds(&p, r)
		return p
	}
	measure := func(hosts, bytes int) {
		s := cost.Sample{Route: collective.DefaultRoute(bytes), Hosts: hosts, Bytes: bytes}
		s.Seconds = truth.AllReduceSeconds(s.Route, hosts, bytes)
		for range 3 {
			r.decideRoutes(decide.Measurement[cost.Sample]{Sample: s})
		}
	}
	unknown := func(when string) {
		if p := ask(50e6); p.LinkSeconds != nil || p.Seconds != p.MemorySeconds || p.Seconds <= 0 {
			t.Errorf("%s: %+v", when, p)
		}
	}
	if p := ask(0); p.LinkSeconds == nil || *p.LinkSeconds != 0 || p.Seconds != p.MemorySeconds {
		t.Errorf("nothing crosses: %+v", p)
	}
	unknown("before anything was measured")
	measure(4, 8)
	unknown("of losses alone")
	measure(2, 16<<20)
	measure(4, 8) // the newest is not what tells
	p := ask(50e6)
	if p.LinkSeconds == nil || p.Seconds != *p.LinkSeconds+p.MemorySeconds {
		t.Fatalf("with a long one: %+v", p)
	}
	if s := *p.LinkSeconds; s < 3.6 || s > 4.4 {
		t.Errorf("50 MB at 100 Mbit/s are predicted to take %.2f s", s)
	}
}
