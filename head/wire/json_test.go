package wire_test

import (
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/data/cursor"
	"github.com/shoal-ml/shoal/head/wire"
	"github.com/shoal-ml/shoal/head/wire/wiretest"
	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/topo"
)

// Each message is written as docs/formats/hosts.md says, and reads as what was written.
func TestEncode(t *testing.T) {
	data, _ := cursor.New(100, 10, 7, true)
	call := wire.Call{Worker: 3, Ticket: 1 << 63, Call: wiretest.SumCall(2)}
	call.In, call.Out, call.Far = nil, nil, &collective.Far{In: 2, Out: 2}
	shared := call
	shared.Far, shared.Shared = &collective.Far{In: 2, Out: 2},
		collective.Shared{Group: 2, Name: "total", Off: 8}
	vote := member.Vote{Ballot: member.Ballot{Round: 2, Host: "B"},
		Record: member.Record{Head: "A", Hosts: []member.Host{{Name: "A"}}}}
	for _, c := range []struct {
		m    wire.Message
		want string
	}{
		{wire.Ask{Ask: member.Accept{Vote: vote, After: vote.Record}},
			`{"accept":{"ballot":{"round":2,"host":"B"},"record":{"view":{},"head":"A","hosts":[{"name":"A"}]},"after":{"view":{},"head":"A","hosts":[{"name":"A"}]}}}`},
		{wire.Answer{Answer: member.Promise{Generation: 2, Accepted: nil}},
			`{"promise":{"generation":2}}`},
		{&wire.Frame{Term: 1, Up: true, First: 2, Ack: 3,
			Payloads: []wire.Payload{&wire.Posted{Call: call}, wire.Stated{Worker: 1, Data: data}}},
			`{"frame":{"term":1,"up":true,"first":2,"ack":3,"payloads":[` +
				`{"posted":{"worker":3,"ticket":9223372036854775808,"kind":1,"dtype":2,"reduction":1,"group":2,"shape":[2],"far":{"in":2,"out":2}}},` +
				`{"stated":{"worker":1,"data":{"samples":100,"batch":10,"seed":7}}}]}}`},
		{&wire.Frame{First: 2, Up: true,
			Payloads: []wire.Payload{&wire.Posted{Call: shared}, wire.Began{}}},
			`{"frame":{"up":true,"first":2,"payloads":[{"posted":{"worker":3,"ticket":9223372036854775808,"kind":1,"dtype":2,"reduction":1,"group":2,"shape":[2],` +
				`"shared":{"group":2,"name":"total","off":8},"far":{"in":2,"out":2}}},{"began":{}}]}}`},
		{&wire.Frame{First: 1,
			Payloads: []wire.Payload{wire.Groups{Worker: 1, Reason: "why"},
				wire.Begin{}}},
			`{"frame":{"first":1,"payloads":[{"groups":{"worker":1,"reason":"why"}},{"begin":{}}]}}`},
		{&wire.Frame{First: 1,
			Payloads: []wire.Payload{
				&wire.Commit{Index: 1, View: &topo.View{}, Data: &data,
					Entered: []topo.WorkerID{}}}},
			`{"frame":{"first":1,"payloads":[{"commit":{"index":1,"data":{"samples":100,"batch":10,"seed":7},"view":{},"entered":[]}}]}}`},
		{&wire.Frame{First: 1,
			Payloads: []wire.Payload{
				&wire.Exec{Batch: 1, Hosts: []string{"A"},
					Sets: []wire.Set{{Calls: []wire.Call{call}, Of: []int{0},
						Route: collective.DefaultRoute(1 << 20)}}}, wire.Begin{}}},
			`{"frame":{"first":1,"payloads":[{"exec":{"batch":1,"hosts":["A"],"sets":[{"calls":[` +
				`{"worker":3,"ticket":9223372036854775808,"kind":1,"dtype":2,"reduction":1,"group":2,"shape":[2],"far":{"in":2,"out":2}}],"of":[0],"route":"ring/256"}]}},{"begin":{}}]}}`},
	} {
		b := wire.Append(nil, c.m)
		// The record's own view is a struct of zeros, which is left out.
		want := strings.ReplaceAll(c.want, `"record":{"view":{},`, `"record":{`)
		want = strings.ReplaceAll(want, `"after":{"view":{},`, `"after":{`)
		if string(b) != want {
			t.Errorf("encoded as\n%s, want\n%s", b, want)
		}
		if got, err := wire.Decode(b); err != nil || cmp.Diff(c.m, got) != "" {
			t.Errorf("%s comes back with %v:\n%s", b, err, cmp.Diff(c.m, got))
		}
	}
}

// Memory and errors as values have no place in a message, and a weight that is no number has no
// word.
func TestEncodeLeavesMemoryBehind(t *testing.T) {
	c := wiretest.SumCall(0)
	c.Weight, c.Far = math.Inf(1), &collective.Far{In: 2, Out: 2}
	b := string(wire.Append(nil,
		&wire.Frame{First: 2, Up: true,
			Payloads: []wire.Payload{&wire.Posted{Call: wire.Call{Call: c}}, wire.Began{}}}))
	if want := `{"frame":{"up":true,"first":2,"payloads":[{"posted":{"kind":1,"dtype":2,"reduction":1,"weight":-1,"shape":[2],"far":{"in":2,"out":2}}},{"began":{}}]}}`; b != want {
		t.Errorf("encoded as\n%s, want\n%s", b, want)
	}
}

// What no agent of this version sends is refused, with a reason.
func TestDecodeRefuses(t *testing.T) {
	down := func(body string) string { return `{"frame":{"first":1,"payloads":[` + body + `]}}` }
	up := func(body string) string {
		return `{"frame":{"up":true,"first":2,"payloads":[` + body + `]}}`
	}
	call := func(fields string) string {
		return up(`{"posted":{"kind":1,"dtype":2,"reduction":1` + fields + `}}`)
	}
	exec := func(sets string) string {
		return down(`{"exec":{"batch":1,"hosts":["A"],"sets":[` + sets + `]}}`)
	}
	for text, want := range map[string]string{
		``:                                   "EOF",
		`null`:                               "0 kinds",
		`{}`:                                 "0 kinds",
		`{"frame":{"first":1}} {}`:           "after it",
		`{"frame":{"first":1},"refused":{}}`: "2 kinds",
		`{"frames":{}}`:                      "frames",
		`{"frame":{"first":1,"last":2}}`:     "last",
		`{"frame":{}}`:                       "number 0",
		`{"frame":{"first":1,"ack":1` + strings.Repeat("0", 18) + `0}}`: "acknowledged",
		down(`{}`):                      "0 kinds",
		down(`null`):                    "0 kinds",
		down(`{"drops":{},"begin":{}}`): "2 kinds",
		down(`{"posted":{"kind":11}}`):  "direction",
		up(`{"drops":{}}`):              "direction",
		up(`{"report":{}}`):             "the first",
		`{"frame":{"up":true,"first":1,"payloads":[{"began":{}}]}}`:  "the first",
		up(`{"posted":{"kind":12,"dtype":2,"far":{}}}`):              "kind 12",
		up(`{"posted":{"kind":1,"dtype":8,"far":{}}}`):               "dtype 8",
		up(`{"posted":{"kind":1,"dtype":2,"reduction":9,"far":{}}}`): "reduction 9",
		call(``):                                         "lengths",
		call(`,"in":"AAAA"`):                             "in",
		call(`,"far":{"in":-1}`):                         "-1 and 0 elements",
		call(`,"far":{"out":281474976710657}`):           "281474976710657 elements",
		call(`,"far":{},"peer":-2`):                      "peer -2",
		call(`,"far":{},"peer":65536`):                   "peer 65536",
		call(`,"far":{},"shape":[1,-1]`):                 "shape [1 -1]",
		call(`,"far":{},"shape":[1,1,1,1,1,1,1,1,1]`):    "9 dimensions",
		call(`,"far":{},"splits":[-1]`):                  "splits [-1]",
		call(`,"far":{},"shared":{"name":"x","off":-8}`): "byte -8",
		call(`,"far":{},"shared":{"name":"` + strings.Repeat("x", 256) +
			`"}`): "a name of 256 bytes",
		exec(``):                                 "0 collectives",
		exec(`{}`):                               "without calls",
		exec(`{"calls":[{"kind":11}],"of":[0]}`): "without a route",
		exec(
			`{"calls":[{"kind":11}],"of":[0],"route":"ring/100"}`): "is no route",
		exec(
			`{"calls":[{"kind":11}],"route":"ring/64"}`): "1 calls of the hosts []",
		exec(
			`{"calls":[{"kind":11}],"of":[1],"route":"ring/64"}`): "the hosts [1]",
		exec(
			`{"calls":[{"kind":11}],"of":[-1],"route":"ring/64"}`): "the hosts [-1]",
		down(
			`{"exec":{"hosts":["A"],"sets":[{"calls":[{"kind":11}]}]}}`): "batch 0",
		down(
			`{"exec":{"batch":1,"sets":[{"calls":[{"kind":11}]}]}}`): "0 hosts",
		`{"frame":{"up":true,"first":1,"payloads":[{"report":{"batches":[{"executed":true}]}}]}}`: "batch 0",
		`{"frame":{"up":true,"first":1,"payloads":[{"report":{"slots":-2}}]}}`:                    "slots: -2",
		`{"frame":{"up":true,"first":1,"payloads":[{"report":{"groups":[{}]}}]}}`:                 "group: -1",
		down(
			`{"starts":{"count":-1}}`): "workers to start",
		down(
			`{"starts":{"count":100000}}`): "workers to start",
		down(
			`{"commit":{}}`): "entry 0",
		down(
			`{"commit":{"index":1,"data":{"samples":1}}}`): "batch of 0",
		down(
			`{"commit":{"index":1,"view":{"members":[{"worker":1},{"worker":1}]}}}`): "1 of them different",
		down(
			`{"groups":{"id":1,"size":1,"self":1,"members":[0]}}`): "place 1 of 1",
		down(
			`{"decides":{"record":{}}}`): `head ""`,
		`{"decision":{"record":{"head":"A","want":-1}}}`:                           "want: -1",
		`{"decision":{"record":{"head":"A","hosts":[{"name":"A"},{"name":"A"}]}}}`: "twice",
		`{"decision":{"record":{"head":"A","since":1}}}`:                           "since 1",
	} {
		if m, err := wire.Decode([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s is read as %+v, %v; want an error about %q", text, m, err, want)
		}
	}
}
