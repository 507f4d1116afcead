package policy_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/cost"
	"github.com/shoal-ml/shoal/decide"
	"github.com/shoal-ml/shoal/decide/policy"
	"github.com/shoal-ml/shoal/setting"
)

// tuner decides by which routes all-reduces go, as policy.Routes does.
type tuner interface {
	Decide(o decide.Measurement[cost.Sample]) (policy.RouteDecision, bool)
}

// network is hosts whose all-reduces take what a model says, more or less. The goroutine of the
// test uses it.
type network struct {
	truth cost.Model // what all-reduces take
	noise float64    // share by which they take longer at most
	rng   *rand.Rand
	odd   map[collective.Route]float64    // by which factor a route takes longer than that
	route map[cost.Class]collective.Route // that was decided on; none = the default

	seen    bool      // hosts tell what their links carry
	passed  float64   // seconds of all-reduces since they have told that last
	reading []float64 // bytes per second of the cable of each host, which they will tell next
	told    []float64 // that they have told; nil = nothing
}

// tellLinkRates has the hosts tell twice a second what their links have shown half a second before:
// what their cables carry, more or less, and more of those for which no other is waited. It returns
// what they have told last, after an all-reduce of some seconds.
func (n *network) tellLinkRates(hosts int, seconds float64) []float64 {
	if n.passed += seconds; !n.seen || n.passed < 0.5 && n.told != nil {
		return n.told
	}
	n.passed, n.told, n.reading = 0, n.reading, nil
	for host := range hosts {
		rate := (0.9 + 0.2*n.rng.Float64()) / n.truth.Beta
		if len(n.truth.Slow) == hosts && slices.Max(n.truth.Slow) > 1 {
			if rate /= n.truth.Slow[host]; n.truth.Slow[host] == 1 {
				rate *= 1 + 0.4*n.rng.Float64()
			}
		}
		n.reading = append(n.reading, rate)
	}
	return n.told
}

// newNetwork returns a network whose all-reduces take what truth says, and up to the share noise
// longer.
func newNetwork(truth cost.Model, noise float64) *network {
	return &network{truth: truth, noise: noise, rng: rand.New(rand.NewPCG(1, 1)),
		odd: map[collective.Route]float64{}, route: map[cost.Class]collective.Route{}}
}

// allReduce makes an all-reduce by the route of its class, tells the tuners what it took, and takes
// the route that the first one, which leads, decides on. It panics when another one decides.
func (n *network) allReduce(hosts, bytes int, tuners ...tuner) (policy.RouteDecision, bool) {
	class := cost.ClassOf(hosts, bytes)
	route, known := n.route[class]
	if !known {
		route = collective.DefaultRoute(bytes)
	}
	s := cost.Sample{Route: route, Hosts: hosts, Bytes: bytes,
		Seconds: n.truth.AllReduceSeconds(route, hosts, bytes) * (1 + n.noise*n.rng.Float64())}
	if f := n.odd[route]; f > 0 {
		s.Seconds *= f
	}
	s.Cables = n.tellLinkRates(hosts, s.Seconds)
	for _, t := range tuners[1:] {
		if c, is := t.Decide(decide.Measurement[cost.Sample]{Sample: s, Leads: false}); is {
			panic(fmt.Sprintf("who does not lead decides %+v", c))
		}
	}
	c, changed := tuners[0].Decide(decide.Measurement[cost.Sample]{Sample: s, Leads: true})
	if changed {
		n.route[c.Class] = c.Route
	}
	return c, changed
}

// allReduceInTurn makes all-reduces of some lengths in turn, so many times, and returns the changes
// of routes.
func (n *network) allReduceInTurn(times, hosts int, lengths []int,
	tuners ...tuner) (changes []policy.RouteDecision) {
	for range times {
		for _, bytes := range lengths {
			if c, changed := n.allReduce(hosts, bytes, tuners...); changed {
				changes = append(changes, c)
			}
		}
	}
	return changes
}

// slowCables is a network on which steps and bytes cost much.
var slowCables = cost.Model{Fixed: 1e-3, Alpha: 200e-6, Piece: 50e-6, Beta: 8e-9,
	Gamma: 0.1e-9}

// On a network that the model knows nothing of, a job comes to routes that take hardly longer than
// the best there are, and stays there.
func TestTunerFindsGoodRoutes(t *testing.T) {
	lengths := []int{4 << 10, 300 << 10, 16 << 20}
	for _, truth := range []cost.Model{slowCables,
		{Fixed: 30e-6, Alpha: 5e-6, Piece: 1e-6, Beta: 8.0 / 100e9, Gamma: 0.1e-9},
		{Fixed: 2e-3, Alpha: 20e-3, Piece: 10e-6, Beta: 8e-9, Gamma: 0.1e-9}} {
		n := newNetwork(truth, 0.02)
		tuner := policy.NewRoutes(cost.Default())
		n.allReduceInTurn(150, 4, lengths, tuner)
		for _, bytes := range lengths {
			route, known := n.route[cost.ClassOf(4, bytes)]
			if !known {
				route = collective.DefaultRoute(bytes)
			}
			best := policy.BestRoute(truth, 4, bytes)
			if took, least := truth.AllReduceSeconds(route, 4, bytes),
				truth.AllReduceSeconds(best, 4, bytes); took > least/0.88 {
				t.Errorf("%d bytes go %v, which takes %v; %v takes %v", bytes, route, took, best,
					least)
			}
		}
		if late := n.allReduceInTurn(150, 4, lengths, tuner); len(late) > 0 {
			t.Errorf("it does not settle: %v", ledger(late))
		}
	}
}

// A route that the model overrates is tried, found wanting, left again and not tried again.
func TestTunerBelievesWhatItMeasures(t *testing.T) {
	n := newNetwork(slowCables, 0)
	tuner := policy.NewRoutes(cost.Default())
	bytes := 1 << 20
	for _, r := range collective.Candidates(3, bytes) {
		if r != collective.DefaultRoute(bytes) {
			n.odd[r] = 3
		}
	}
	changes := ledger(n.allReduceInTurn(1000, 3, []int{bytes}, tuner))
	if len(changes) == 0 || len(changes)%2 != 0 {
		t.Fatalf("%d changes: %+v", len(changes), changes)
	}
	tried := map[string]bool{}
	for i := 0; i < len(changes); i += 2 {
		there, back := changes[i], changes[i+1]
		if there.Phase != setting.Entered || back.Phase != setting.Reverted ||
			there.Number != uint64(i/2+1) || back.Number != there.Number || back.To != there.To ||
			there.From != "route="+collective.DefaultRoute(bytes).String() || tried[there.To] {
			t.Errorf("%v, then %v", there, back)
		}
		tried[there.To] = true
		if !strings.Contains(there.Because, "may take") || back.Measured > 0.97 ||
			back.Why == "" || !there.Predicted.IsKnown() {
			t.Errorf("%v, then %v", there, back)
		}
		if err := errors.Join(there.Validate(), back.Validate()); err != nil {
			t.Error(err)
		}
	}
}

// ledger returns what the ledger has of decisions.
func ledger(decisions []policy.RouteDecision) (list []setting.Change) {
	for _, d := range decisions {
		list = append(list, d.Changes...)
	}
	return list
}

// Where times differ by more than routes do, trials become rare.
func TestTunerIsPatientWithNoise(t *testing.T) {
	n := newNetwork(slowCables, 1.5)
	tuner := policy.NewRoutes(cost.Default())
	n.allReduceInTurn(500, 3, []int{1 << 20}, tuner)
	if late := n.allReduceInTurn(500, 3, []int{1 << 20}, tuner); len(late) > 10 {
		t.Errorf("%d changes in 500 all-reduces: %+v", len(late), late)
	}
}

// How fast a cable is follows from the longest all-reduces, also where short ones fit into what a
// cable lets through at once.
func TestTunerKnowsTheCable(t *testing.T) {
	slow, burst := slowCables, slowCables
	slow.Beta, burst.Beta = 8/100e6, 8/1e9
	tuner := policy.NewRoutes(cost.Default())
	// measure tells the tuner of so many all-reduces that take what truth says.
	measure := func(truth cost.Model, bytes, times int) {
		route := collective.DefaultRoute(bytes)
		for range times {
			tuner.Decide(decide.Measurement[cost.Sample]{Sample: cost.Sample{Route: route, Hosts: 4,
				Bytes: bytes, Seconds: truth.AllReduceSeconds(route, 4, bytes)}})
		}
	}
	if s, known := tuner.CableSecondsPerByte(); known {
		t.Errorf("%v before anything was measured", s)
	}
	if s, known := tuner.CallSeconds(); known {
		t.Errorf("a call takes %v before anything was measured", s)
	}
	measure(burst, 1<<20, 8)
	if s, known := tuner.CallSeconds(); known {
		t.Errorf("a call takes %v, as only long ones have shown", s)
	}
	for bytes := 8; bytes < 1<<20; bytes *= 4 {
		measure(burst, bytes, 8)
	}
	want := burst.AllReduceSeconds(collective.DefaultRoute(8), 4, 8)
	if s, known := tuner.CallSeconds(); !known || s < 0.99*want || s > 1.01*want {
		t.Errorf("a call takes %v (known: %v), not %v", s, known, want)
	}
	measure(slow, 35<<20, 1)
	measure(burst, 300, 8)
	if s, known := tuner.CableSecondsPerByte(); !known || s < slow.Beta || s > 1.1*slow.Beta {
		t.Errorf("a byte takes %v (known: %v), not %v", s, known, slow.Beta)
	}
}

// When the network becomes another one, what was measured before is forgotten.
func TestTunerFollowsTheNetwork(t *testing.T) {
	far := cost.Model{Fixed: 1e-3, Alpha: 20e-3, Piece: 5e-6, Beta: 8.0 / 10e9, Gamma: 0.1e-9}
	near := cost.Model{Fixed: 1e-3, Alpha: 5e-6, Piece: 5e-6, Beta: 8e-9, Gamma: 0.1e-9}
	n := newNetwork(near, 0.02)
	tuner := policy.NewRoutes(cost.Default())
	bytes := 1 << 20
	for i, truth := range []cost.Model{near, far, near} {
		n.truth = truth
		n.allReduceInTurn(600, 6, []int{bytes}, tuner)
		route, known := n.route[cost.ClassOf(6, bytes)]
		if !known {
			route = collective.DefaultRoute(bytes)
		}
		best := policy.BestRoute(truth, 6, bytes)
		if took, least := truth.AllReduceSeconds(route, 6, bytes),
			truth.AllReduceSeconds(best, 6, bytes); took > least/0.88 {
			t.Errorf("%d: %v takes %v; %v takes %v", i, route, took, best, least)
		}
	}
}

// Who comes to lead goes on with what the one before had chosen, and decides as that one would
// have.
func TestTunersAgree(t *testing.T) {
	n := newNetwork(slowCables, 0)
	one, other := policy.NewRoutes(cost.Default()), policy.NewRoutes(cost.Default())
	n.allReduceInTurn(200, 4, []int{1 << 20, 300 << 10}, one, other)
	before := fmt.Sprint(n.route)
	if len(n.route) == 0 {
		t.Fatal("nothing was chosen")
	}
	if changes := n.allReduceInTurn(200, 4, []int{1 << 20, 300 << 10}, other,
		one); len(changes) > 0 {
		t.Errorf("the other one changes %s: %+v", before, changes)
	}
}

// However many lengths a job has, the tuner stays small and quick.
func TestTunerHasBounds(t *testing.T) {
	n := newNetwork(slowCables, 0.1)
	tuner := policy.NewRoutes(cost.Default())
	for bytes := 1 << 10; bytes < 1<<30; bytes += bytes / 8 {
		for range 3 {
			n.allReduce(2, bytes, tuner)
		}
	}
	if changes := n.allReduceInTurn(100, 2, []int{1 << 33}, tuner); len(changes) > 0 {
		t.Errorf("a length beyond the bound is decided on: %+v", changes)
	}
	if changes := n.allReduceInTurn(100, 17, []int{1 << 20},
		policy.NewRoutes(cost.Default())); len(changes) > 0 {
		t.Errorf("too many hosts are decided on: %+v", changes)
	}
}

// Where one stream cannot fill a cable, long all-reduces go on several, although nothing but a
// trial can tell that; where it can, they stay on one.
func TestTunerTriesStreams(t *testing.T) {
	for share, several := range map[float64]bool{0.3: true, 1: false} {
		truth := slowCables
		truth.Share = share
		n := newNetwork(truth, 0.02)
		bytes := 16 << 20
		tried := false
		for _, c := range n.allReduceInTurn(300, 3, []int{bytes},
			policy.NewRoutes(cost.Default())) {
			tried = tried || c.Route.Streams > 1
		}
		route, known := n.route[cost.ClassOf(3, bytes)]
		if !tried || !known || (route.Streams > 1) != several {
			t.Errorf(
				"a stream fills %v of a cable, and 16 MiB go %v; several streams were tried: %v",
				share, route, tried)
		}
	}
}

// Over two hosts most routes are one way. It is never left for another name of it, however much
// times differ.
func TestTunerKnowsOneWayByAllNames(t *testing.T) {
	n := newNetwork(slowCables, 1.5)
	changes := n.allReduceInTurn(500, 2, []int{72 << 10, 1 << 20}, policy.NewRoutes(cost.Default()))
	for _, d := range changes {
		for _, c := range d.Changes {
			from, to := readRoute(t, c.From), readRoute(t, c.To)
			if from.Streams == to.Streams && n.truth.AllReduceSeconds(from, 2,
				d.Bytes) == n.truth.AllReduceSeconds(to, 2, d.Bytes) {
				t.Errorf("%v", c)
			}
		}
	}
}

// readRoute returns the route that a part of a setting has.
func readRoute(t *testing.T, text string) (r collective.Route) {
	t.Helper()
	if err := r.UnmarshalText([]byte(strings.TrimPrefix(text, "route="))); err != nil {
		t.Fatal(err)
	}
	return r
}

// What sums cost is not learnt from all-reduces: a tuner counts on what it was told.
func TestTunerBeginsWithAModel(t *testing.T) {
	said := map[string]bool{}
	for _, gamma := range []float64{0.1e-9, 100e-9} {
		m := cost.Default()
		m.Gamma = gamma
		for _, c := range newNetwork(slowCables, 0).allReduceInTurn(2*8, 4, []int{16 << 20},
			policy.NewRoutes(m)) {
			said[fmt.Sprint(c.Changes)] = true
		}
	}
	if len(said) < 2 {
		t.Errorf("whatever sums cost, it says %v", said)
	}
}
