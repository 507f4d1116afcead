package member_test

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/topo"
)

// Hosts are a quorum if they have more than half of the votes, of which the head has one and a
// half.
func TestQuorum(t *testing.T) {
	for _, tc := range []struct {
		members, hosts string // a letter a host; the first one of members leads
		want           bool
	}{
		{"a", "a", true}, {"a", "", false},
		{"ab", "a", true}, {"ab", "b", false}, {"ab", "ab", true}, {"ab", "bx", false},
		{"abc", "a", false}, {"abc", "ab", true}, {"abc", "bc", true}, {"abc", "b", false},
		{"abcd", "ab", true}, {"abcd", "bc", false}, {"abcd", "bcd", true},
		{"abcde", "ab", false}, {"abcde", "abc", true}, {"abcde", "bcd", true},
		{"abcde", "bc", false},
	} {
		r := recordOf(1, 0, tc.members)
		if got := r.IsQuorum(splitLetters(tc.hosts)); got != tc.want {
			t.Errorf("of %s, %s is a quorum: %v", tc.members, tc.hosts, got)
		}
	}
}

// The head is a voter also when it has no members.
func TestVotersHaveTheHead(t *testing.T) {
	r := recordOf(1, 0, "bcb")
	r.Head = "a"
	if diff := cmp.Diff([]string{"b", "c", "a"}, r.Voters()); diff != "" {
		t.Error(diff)
	}
	r.View.Members = nil
	if !r.IsQuorum([]string{"a"}) {
		t.Error("a head alone cannot decide")
	}
}

// splitLetters lists the letters of a text, each of which names a host.
func splitLetters(s string) (list []string) {
	for _, c := range s {
		list = append(list, string(c))
	}
	return list
}

// recordOf makes a record with one member on the host of each letter; the first one leads. want
// tells records of one generation apart.
func recordOf(g topo.Generation, want int, members string) member.Record {
	r := member.Record{View: topo.View{Generation: g}, Head: members[:1], Want: want}
	for i, h := range splitLetters(members) {
		r.View.Members = append(r.View.Members, topo.Member{Worker: topo.WorkerID(i), Host: h})
	}
	return r
}

// council is the hosts of a random test, and the messages between them. Only the test's goroutine
// uses it.
type council struct {
	t         *rapid.T
	acceptors map[string]*member.Acceptor // by host
	proposers map[string]*member.Proposer // by host
	post      []letter                    // messages that were not delivered
	decided   map[topo.Generation]member.Record
	proposals int // records that were proposed, which tells them apart
}

// letter is a message between hosts: an ask, or else an answer.
type letter struct {
	from, to string
	ask      member.Ask
	answer   member.Answer // nil = the message is an ask
}

// citizens are the hosts of a council, a letter each.
const citizens = "abcde"

// newCouncil makes five hosts of which the voters of generation 1, which has these members, know
// that generation.
func newCouncil(t *rapid.T, members string) *council {
	c := &council{t: t, acceptors: map[string]*member.Acceptor{},
		proposers: map[string]*member.Proposer{}, decided: map[topo.Generation]member.Record{}}
	for _, h := range splitLetters(citizens) {
		c.acceptors[h] = new(member.Acceptor)
		c.proposers[h] = member.NewProposer(h, member.Record{})
	}
	first := recordOf(1, 0, members)
	for _, h := range first.Voters() {
		c.decide(h, first)
	}
	return c
}

// decide tells host h of a decision, and ends the test if others were told of another record of
// that generation.
func (c *council) decide(h string, r member.Record) {
	g := r.View.Generation
	if other, ok := c.decided[g]; ok && !cmp.Equal(other, r) {
		c.t.Fatalf("generation %d was decided twice: %+v and %+v", g, other, r)
	}
	c.decided[g] = r
	c.acceptors[h].LearnDecision(r)
	c.proposers[h].LearnDecision(r)
}

// proposeNext has host h want another generation after the newest that it knows, with these
// members; nothing if it knows none.
func (c *council) proposeNext(h, members string) {
	if r, ok := c.acceptors[h].Record(); ok {
		c.proposals++
		c.proposers[h].Propose(recordOf(r.View.Generation+1, c.proposals, members))
	}
}

// collectAsks moves what proposers want sent into c.post.
func (c *council) collectAsks() {
	for _, h := range splitLetters(citizens) {
		for _, e := range c.proposers[h].Ready() {
			c.post = append(c.post, letter{from: h, to: e.To, ask: e.Ask})
		}
	}
}

// deliver gives a message to its host, and puts the answer into c.post.
func (c *council) deliver(m letter) {
	if m.answer != nil {
		if r := c.proposers[m.to].ReceiveAnswer(m.from, m.answer); r != nil {
			c.decide(m.to, *r)
		}
		return
	}
	switch ask := m.ask.(type) {
	case member.Prepare:
		c.decide(m.to, ask.After)
	case member.Accept:
		c.decide(m.to, ask.After)
	}
	if answer := c.acceptors[m.to].Answer(m.ask); answer != nil {
		c.post = append(c.post, letter{from: m.to, to: m.from, answer: answer})
	}
}

// drawMembers draws one to five of the citizens, as a text of their letters.
func drawMembers(t *rapid.T) string {
	list := rapid.SliceOfNDistinct(rapid.SampledFrom(splitLetters(citizens)), 1, 5,
		rapid.ID).Draw(t,
		"members")
	return fmt.Sprint(joinLetters(list))
}

// joinLetters is the contrary of splitLetters.
func joinLetters(list []string) (s string) {
	for _, x := range list {
		s += x
	}
	return s
}

// Whoever proposes what at whatever time, and whatever becomes of the messages: a generation is
// decided once. When messages arrive again, a host that wants a generation gets one.
func TestDecidedOnce(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := newCouncil(t, drawMembers(t))
		for range rapid.IntRange(1, 150).Draw(t, "events") {
			h := rapid.SampledFrom(splitLetters(citizens)).Draw(t, "host")
			switch what := rapid.IntRange(0, 9).Draw(t, "what"); {
			case what == 0:
				c.proposeNext(h, drawMembers(t))
			case what == 1:
				c.proposers[h].Tick()
			case len(c.post) > 0:
				i := rapid.IntRange(0, len(c.post)-1).Draw(t, "message")
				m := c.post[i]
				if what != 2 { // else it comes again
					c.post = slices.Delete(c.post, i, i+1)
				}
				if what != 3 { // else it is lost
					c.deliver(m)
				}
			}
			c.collectAsks()
		}
		c.post = nil
		best, newest := "", topo.Generation(0)
		for _, h := range splitLetters(citizens) {
			if r, ok := c.acceptors[h].Record(); ok && r.View.Generation > newest {
				best, newest = h, r.View.Generation
			}
		}
		c.proposeNext(best, drawMembers(t))
		for range 500 {
			c.proposers[best].Tick()
			for c.collectAsks(); len(c.post) > 0; c.collectAsks() {
				m := c.post[0]
				c.post = c.post[1:]
				c.deliver(m)
			}
			if r, _ := c.acceptors[best].Record(); r.View.Generation > newest {
				return
			}
		}
		t.Fatalf("%s wants a generation after %d, can reach everybody, and gets none", best, newest)
	})
}
