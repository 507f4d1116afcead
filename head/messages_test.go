package head_test

import (
	"bytes"
	"encoding/json"
	"maps"
	"math/rand/v2"
	"reflect"
	"runtime/debug"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/head"
	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/head/wire/wiretest"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/setting"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/tensor"
	"github.com/shoal-ml/shoal/topo"
)

// FuzzDecode: whatever is read is written the same, and no agent that it is sent to falls over.
func FuzzDecode(f *testing.F) {
	for _, m := range messagesOfPair(f) {
		f.Add(wire.Append(nil, m))
	}
	for _, text := range []string{
		// a new head is told of a step that no member took
		`{"frame":{"term":5,"up":true,"first":1,"payloads":[{"report":{"index":5,"state":{"view":{"generation":5},"data":{"samples":100,"batch":10}},` +
			`"batches":[{"batch":1,"hosts":["C"],"sets":[{"calls":[{"worker":9,"kind":11,"step":true}],"of":[0],"route":"star/64"}],"executed":true}]}}]}}`,
		// a receive from beyond the group, when a send waits for it
		`{"frame":{"up":true,"first":1,"payloads":[{"report":{}},{"posted":{"worker":1,"kind":9,"dtype":2,"far":{}}},` +
			`{"posted":{"kind":10,"dtype":2,"peer":99,"far":{}}}]}}`,
	} {
		f.Add([]byte(text))
	}
	f.Fuzz(receiveEverywhere)
}

// Messages with something wrong in them are refused, or heard without harm.
func TestDamagedMessages(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	said := messagesOfPair(t)
	for range 1000 {
		text := wire.Append(nil, randomMessage(r, said))
		if wire.IsBinary(text) {
			receiveEverywhere(t, damageBytes(r, text))
			continue
		}
		var tree any
		d := json.NewDecoder(bytes.NewReader(text))
		d.UseNumber()
		if err := d.Decode(&tree); err != nil {
			t.Fatal(err)
		}
		for range 1 + r.IntN(4) {
			tree = damageJSON(r, tree)
		}
		b, err := json.Marshal(tree)
		if err != nil {
			t.Fatal(err)
		}
		receiveEverywhere(t, b)
	}
}

// randomMessage returns one of the messages, or in place of a frame one that begins a stream, with
// six payloads of frames in the same direction.
func randomMessage(r *rand.Rand, said []wire.Message) wire.Message {
	f, ok := said[r.IntN(len(said))].(*wire.Frame)
	if !ok {
		return said[r.IntN(len(said))]
	}
	first := &wire.Frame{Up: f.Up, First: 1}
	for len(first.Payloads) < 6 {
		g, ok := said[r.IntN(len(said))].(*wire.Frame)
		if !ok || g.Up != f.Up || len(g.Payloads) == 0 {
			continue
		}
		b := g.Payloads[r.IntN(len(g.Payloads))]
		if _, report := b.(wire.Report); !f.Up || report == (len(first.Payloads) == 0) {
			first.Payloads = append(first.Payloads, b)
		}
	}
	return first
}

// damageBytes changes, removes or adds 1 to 4 bytes of a message in binary form, but not the first,
// in place, and returns it.
func damageBytes(r *rand.Rand, b []byte) []byte {
	for range 1 + r.IntN(4) {
		switch i := 1 + r.IntN(len(b)-1); r.IntN(4) {
		case 0:
			b = slices.Delete(b, i, i+1)
		case 1:
			b = slices.Insert(b, i, byte(r.Uint32()))
		default:
			b[i] = []byte{0, 1, 2, 3, b[i] + 1, b[i] - 1, 0x7f, 0x80, 0xff}[r.IntN(9)]
		}
		if len(b) < 2 {
			break
		}
	}
	return b
}

// damageJSON changes one value of a JSON tree, in place, and returns the tree.
func damageJSON(r *rand.Rand, tree any) any {
	numbers := []string{"-1", "0", "1", "2", "3", "5", "9", "11", "256", "65536", "4294967295",
		"9223372036854775807", "18446744073709551615"}
	switch x := tree.(type) {
	case map[string]any:
		if keys := slices.Sorted(maps.Keys(x)); len(keys) > 0 {
			k := keys[r.IntN(len(keys))]
			if r.IntN(12) == 0 {
				delete(x, k)
			} else {
				x[k] = damageJSON(r, x[k])
			}
		}
	case []any:
		i := r.IntN(len(x) + 1)
		switch {
		case i == len(x) && i > 0:
			return append(x, x[r.IntN(i)])
		case i < len(x) && r.IntN(8) == 0:
			return slices.Delete(x, i, i+1)
		case i < len(x):
			x[i] = damageJSON(r, x[i])
		}
	case json.Number:
		return json.Number(numbers[r.IntN(len(numbers))])
	case bool:
		return !x
	case string:
		return []string{"A", "B", "C", ""}[r.IntN(4)]
	}
	return tree
}

// receiveEverywhere reads a message and has all kinds of agents receive it. It fails the test if
// one panics, or if the message is not the same when it is written and read again. What cannot be
// read is no failure.
func receiveEverywhere(t *testing.T, b []byte) {
	m, err := wire.Decode(b)
	if err != nil {
		return
	}
	defer func() {
		if p := recover(); p != nil {
			t.Fatalf("%s makes an agent panic: %v\n%s", b, p, debug.Stack())
		}
	}()
	if again, err := wire.Decode(wire.Append(nil, m)); err != nil || !reflect.DeepEqual(m, again) {
		t.Fatalf("%s comes back with %v:\n%s", wire.Append(nil, m), err, cmp.Diff(m, again))
	}
	for _, a := range []*head.Agent{newLeading(t), newRecovering(), newFollowing(t)} {
		if frame, ok := m.(*wire.Frame); ok { // another head's would not be heard
			frame.Term = a.Record().Since
		}
		from := "C"
		if !a.Leads() && a.Head() != "B" {
			from = "A"
		}
		a.Receive(from, m)
		runActions(a)
		a.Receive(from, m)
		a.WorkerLost(0, "was killed")
		for range 10 {
			a.Tick()
		}
		a.LinkDown(from, "was silent")
		runActions(a)
	}
}

// messagesOfPair lists what a pair says to each other in a job with data, groups, transfers, a lost
// worker and a second term, as copies. A message that does not come back from bytes fails f.
func messagesOfPair(f testing.TB) (said []wire.Message) {
	p := newPair(f)
	p.spy = func(m wire.Message) { // a copy: the agent uses its memory again
		kept, err := wire.Decode(wire.Append(nil, m))
		if err != nil {
			f.Fatal(err)
		}
		said = append(said, kept)
	}
	data, _ := cursor.New(100, 10, 7, true)
	p.agents["B"].ReportData(2, data, openBatch)
	p.agents["B"].SendNote([]byte("half of the steps wait for data"))
	p.runAll()
	_ = p.agents["A"].Change(setting.Setting{Batch: 20, Rate: 1.4, Sync: "ssgd"},
		setting.Change{Phase: setting.Entered, Policy: "batch", Because: "noise", Rate: 9,
			Alternatives: []string{"batch=40: 1.1x"}, Predicted: setting.Band{Low: 1, High: 2}})
	members := []topo.WorkerID{0, 2}
	for _, w := range members {
		p.agentOf(w).RequestGroup(w, members)
		p.runAll()
	}
	p.agents["B"].RequestGroup(3, members)
	p.postAndRun(2, 1,
		collective.Call{Kind: collective.Recv, DType: tensor.F32, Peer: collective.AnyRank,
			Group: 1, Out: make([]byte, 8)})
	p.postAndRun(0, 1, collective.Call{Kind: collective.Send, DType: tensor.F32, Peer: 1, Group: 1,
		In: make([]byte, 8)})
	for ticket := range uint64(2) {
		for w := range topo.WorkerID(4) {
			c := wiretest.SumCall(topo.World)
			c.More, c.Step = ticket == 0, ticket == 1
			p.postAndRun(w, 2+ticket, c)
		}
	}
	p.postAndRun(2, 9, wiretest.SumCall(topo.World))
	p.agents["B"].WithdrawCall(2, 9)
	p.postAndRun(2, 10, wiretest.SumCall(topo.World))
	_ = p.agents["A"].Resize(6, "ada")
	p.runAll()
	p.agents["B"].WorkerStarted(5)
	p.agents["B"].WorkerAsks(5)
	p.agents["B"].WorkerLost(3, "was killed by SIGKILL")
	p.runAll()
	for w := range topo.WorkerID(3) { // a step that is not executed when B reports to a new head
		p.agentOf(w).PostCall(&collective.Posted{Worker: w, Ticket: 11,
			Call: wiretest.SumCall(topo.World)})
	}
	for _, host := range []string{"B", "A"} {
		for _, a := range p.agents[host].Ready() {
			if s, ok := a.(*head.Send); ok {
				p.spy(s.Message)
				p.agents[s.To].Receive(host, s.Message)
			}
		}
	}
	next := p.agents["B"].Record()
	next.View = next.View.Without()
	next.Since = next.View.Generation
	p.agents["B"].Receive("A", wire.Answer{Answer: member.Decision{Record: next}})
	p.runAll()
	return said
}

// newLeading returns a head, A, with workers and another host, and with a link to a third one, C,
// that has not reported.
func newLeading(t testing.TB) *head.Agent {
	p := newPair(t)
	a := p.agents["A"]
	a.LinkUp("C")
	p.agents["C"] = head.New(head.Config{Self: "C"})
	p.runAll()
	p.postAndRun(0, 1, wiretest.SumCall(topo.World))
	p.postAndRun(2, 1, wiretest.SumCall(topo.World))
	return a
}

// newFollowing returns the agent of a host that has begun to follow A, with a worker that waits.
func newFollowing(t testing.TB) *head.Agent {
	a := head.New(head.Config{Self: "C", Slots: 2})
	a.LinkUp("A")
	a.Receive("A", wire.Answer{Answer: member.Decision{Record: newPair(t).agents["A"].Record()}})
	a.WorkerStarted(9)
	a.WorkerAsks(9)
	a.PostCall(&collective.Posted{Worker: 0, Ticket: 1, Call: wiretest.SumCall(topo.World)})
	return a
}

// newRecovering returns a new head, B, that waits for the report of C.
func newRecovering() *head.Agent {
	a := head.New(head.Config{Self: "B", Slots: 2})
	a.LinkUp("C")
	a.WorkerStarted(2)
	a.WorkerAsks(2)
	view := topo.View{Generation: 5,
		Members: []topo.Member{{Worker: 2, Host: "B"}, {Worker: 3, Host: "C"}}}
	a.Receive("C", wire.Answer{
		Answer: member.Decision{
			Record: member.Record{View: view, Head: "B", Since: 5,
				Hosts: []member.Host{{Name: "B"}, {Name: "C", Kind: "a100"}},
				Want:  2, Min: 1, Next: 4}}})
	return a
}

// runActions takes what an agent wants until it wants nothing more, and executes its batches.
func runActions(a *head.Agent) {
	for actions := a.Ready(); len(actions) > 0; actions = a.Ready() {
		for _, x := range actions {
			if e, ok := x.(*head.Execute); ok {
				a.BatchExecuted(e.Batch, digest.Proof{})
			}
		}
	}
}

// Whatever a reader has read before, refused too, it reads as one that is new.
func TestReadersForget(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	said := messagesOfPair(t)
	for _, f := range wiretest.SteadyFrames(t) {
		said = append(said, f)
	}
	var reader wire.Reader
	refused, read := 0, 0
	for range 20000 {
		b := wire.Append(nil, said[r.IntN(len(said))])
		if r.IntN(2) == 0 && wire.IsBinary(b) {
			b = damageBytes(r, b)
		}
		want, fails := wire.Decode(b)
		got, err := reader.Read(b)
		if read++; err != nil {
			refused++
		}
		if (err == nil) != (fails == nil) || err == nil && !reflect.DeepEqual(got, want) {
			t.Fatalf("% x is read with %v, by a new reader with %v:\n%s", b, err, fails,
				cmp.Diff(want, got))
		}
	}
	t.Logf("%d read, %d refused", read, refused)
}
