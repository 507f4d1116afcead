package cost_test

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/cost"
)

// strategies are all ways of an all-reduce.
var strategies = collective.Strategies()

// defaultRoute returns a route by a strategy as it is without measurements.
func defaultRoute(s collective.Strategy) collective.Route {
	return collective.Route{Strategy: s, Piece: 256 << 10, Streams: 1}
}

// isNear reports whether two positive numbers differ by a rounding error only.
func isNear(x, y float64) bool { return math.Abs(x-y) <= 1e-9*math.Max(x, y) }

// A long ring keeps every cable busy all the time, and so comes close to the bound; no strategy
// beats it.
func TestTimeOfLongMoves(t *testing.T) {
	m := cost.Default()
	m.Gamma = 0
	for _, k := range []int{2, 3, 4, 8} {
		n := 64 << 20
		bound := 2 * float64(k-1) / float64(k) * float64(n) * m.Beta
		ring := m.AllReduceSeconds(defaultRoute(collective.Ring{}), k, n)
		if ring < bound || ring > 1.05*bound {
			t.Errorf("a ring over %d hosts: %v, the bound is %v", k, ring, bound)
		}
		for _, s := range strategies {
			if took := m.AllReduceSeconds(defaultRoute(s), k, n); took < bound {
				t.Errorf("%v over %d hosts: %v, the bound is %v", s, k, took, bound)
			}
		}
	}
}

// What is predicted for a length that is cut short for the sake of speed is what follows from its
// longer part.
func TestTimeGrowsEvenly(t *testing.T) {
	m := cost.Default()
	for _, s := range strategies {
		last := 0.0
		for n := 1 << 10; n <= 256<<20; n *= 2 {
			took := m.AllReduceSeconds(defaultRoute(s), 4, n)
			if took < last {
				t.Errorf("%v: %d bytes take %v, half of them %v", s, n, took, last)
			}
			last = took
		}
		if a, b := m.AllReduceSeconds(defaultRoute(s), 4, 128<<20),
			m.AllReduceSeconds(defaultRoute(s), 4,
				256<<20); !isNear(m.AllReduceSeconds(defaultRoute(s), 4, 384<<20)-b, b-a) {
			t.Errorf("%v: what 128 MiB more take is not the same everywhere", s)
		}
	}
}

// A stream that fills part of a cable makes a long ring take that much longer, and so many streams
// as fill it do not.
func TestTimeOfStreams(t *testing.T) {
	m := cost.Default()
	m.Gamma, m.Piece = 0, 0
	// on predicts the seconds on so many streams.
	on := func(streams int) float64 {
		return m.AllReduceSeconds(
			collective.Route{Strategy: collective.Ring{}, Piece: collective.MinPiece,
				Streams: streams}, 4, 64<<20)
	}
	whole := on(1)
	for share, times := range map[float64]float64{0.25: 4, 0.5: 2, 0.99: 1 / 0.99} {
		m.Share = share
		for streams := 1; streams <= collective.MaxStreams; streams++ {
			want := max(1, times/float64(streams)) * whole
			if got := on(streams); got < 0.9*want || got > 1.1*want {
				t.Errorf("%d streams of which each fills %v: %v, want about %v", streams, share,
					got, want)
			}
		}
	}
}

// sampledRoutes is how many of the routes of a length drawSamples measures: the first ones that
// collective.Candidates lists. It lists more for every length over two hosts or more.
const sampledRoutes = 6

// drawSamples returns measurements of all-reduces over hosts, of which there are at least two: some
// short, middle and long ones, by sampledRoutes routes each. Each takes the seconds that the model
// truth predicts, times a random factor from 1 - off to 1 + off. A seed gives the same list each
// time.
func drawSamples(seed uint64, truth cost.Model, hosts int, off float64) (list []cost.Sample) {
	rng := rand.New(rand.NewPCG(seed, 1))
	for _, bytes := range []int{64, 256 << 10, 4 << 20} {
		for _, r := range collective.Candidates(hosts, bytes)[:sampledRoutes] {
			seconds := truth.AllReduceSeconds(r, hosts, bytes) * (1 + off*(2*rng.Float64()-1))
			list = append(list, cost.Sample{Route: r, Hosts: hosts, Bytes: bytes, Seconds: seconds})
		}
	}
	return list
}

// A model that is fitted to measurements explains others.
func TestFit(t *testing.T) {
	for seed := range uint64(2) {
		rng := rand.New(rand.NewPCG(seed, 2))
		// spread returns a number that is up to e² times as large or as small.
		spread := func(x float64) float64 { return x * math.Exp(4*rng.Float64()-2) }
		start := cost.Default()
		truth := cost.Model{Fixed: spread(start.Fixed), Alpha: spread(start.Alpha),
			Piece: spread(start.Piece), Beta: spread(start.Beta), Gamma: start.Gamma, Share: 0.4}
		fitted := start.Fit(drawSamples(seed, truth, 3, 0.05))
		for _, x := range drawSamples(seed, truth, 4, 0) {
			if got := fitted.AllReduceSeconds(x.Route, 4, x.Bytes); got > 1.25*x.Seconds ||
				got < x.Seconds/1.25 {
				t.Errorf("seed %d: %v of %d bytes: predicted %v, is %v (%+v for %+v)", seed,
					x.Route, x.Bytes, got, x.Seconds, fitted, truth)
			}
		}
	}
}

// BenchmarkTime measures what a prediction costs.
func BenchmarkTime(b *testing.B) {
	for b.Loop() {
		cost.Default().AllReduceSeconds(defaultRoute(collective.Clique{}), 8, 16<<20)
	}
}
