package head

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// What is pushed between two ticks is sent, also when the tick says what has come.
func TestStreamTickSendsWhatIsFresh(t *testing.T) {
	s := newStream(3, false)
	s.receive(Frame{Term: 3, Up: true, First: 1, Bodies: []Body{Executed{Flight: 1}}})
	s.push(Executed{Flight: 2})
	if f, ok := s.tick(); !ok || f.Ack != 1 || len(f.Bodies) != 1 {
		t.Errorf("the tick sends %+v", f)
	}
	if f, ok := s.flush(); ok {
		t.Errorf("%+v is sent twice", f)
	}
}

// Whatever becomes of frames, what is pushed at one end comes out at the other once and in order, and is acknowledged.
func TestStreamOverALossyNet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ends := []*stream{newStream(3, true), newStream(3, false)}
		var (
			net         [2][]Frame // to each end
			sent, heard [2][]Flight
			acked       [2]int
		)
		send := func(i int, f Frame, ok bool) {
			if ok {
				net[1-i] = append(net[1-i], f)
			}
		}
		take := func(i, k int) {
			news, arrived := ends[i].receive(net[i][k])
			for _, b := range news {
				heard[i] = append(heard[i], b.(Executed).Flight)
			}
			acked[i] += len(arrived)
		}
		for range rapid.IntRange(0, 100).Draw(t, "events") {
			i := rapid.IntRange(0, 1).Draw(t, "end")
			switch what := rapid.IntRange(0, 5).Draw(t, "what"); {
			case what == 0:
				sent[i] = append(sent[i], Flight(len(sent[i])))
				ends[i].push(Executed{Flight: sent[i][len(sent[i])-1]})
			case what == 1:
				f, ok := ends[i].flush()
				send(i, f, ok)
			case what == 2:
				f, ok := ends[i].tick()
				send(i, f, ok)
			case len(net[i]) > 0:
				k := rapid.IntRange(0, len(net[i])-1).Draw(t, "frame")
				if what != 3 {
					take(i, k)
				}
				if what != 4 {
					net[i] = slices.Delete(net[i], k, k+1)
				}
			}
		}
		for range 4 * resendAfter { // the net is good again
			for i, s := range ends {
				f, ok := s.tick()
				send(i, f, ok)
				for k := range net[1-i] {
					take(1-i, k)
				}
				net[1-i] = nil
			}
		}
		for i := range ends {
			if !slices.Equal(sent[i], heard[1-i]) || acked[i] != len(sent[i]) {
				t.Fatalf("sent %v, heard %v, acknowledged %d", sent[i], heard[1-i], acked[i])
			}
		}
	})
}
