package wire

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

// What is pushed between two ticks is sent, also when the tick says what has come.
func TestStreamTickSendsWhatIsFresh(t *testing.T) {
	s := NewStream(3, false, &Memory{})
	s.Receive(&Frame{Term: 3, Up: true, First: 1, Payloads: []Payload{&Executed{Batch: 1}}}, nil)
	s.Push(&Executed{Batch: 2})
	s.Tick()
	if f, ok := s.Flush(); !ok || f.Ack != 1 || len(f.Payloads) != 1 {
		t.Errorf("after the tick %+v is sent", f)
	}
	if f, ok := s.Flush(); ok {
		t.Errorf("%+v is sent twice", f)
	}
}

// Whatever becomes of frames, what is pushed at one end comes out at the other once and in order,
// and is acknowledged.
func TestStreamOverALossyNet(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		ends := []*Stream{NewStream(3, true, &Memory{}), NewStream(3, false, &Memory{})}
		var (
			net         [2][]Frame // to each end
			sent, heard [2][]BatchID
			acked       [2]int
		)
		// send puts a copy of a frame of end i, if ok, on the net to the other end.
		send := func(i int, f Frame, ok bool) {
			if ok { // on the net it is no memory of the stream's any more
				for k, b := range f.Payloads {
					if k == 0 {
						f.Payloads = slices.Clone(f.Payloads)
					}
					f.Payloads[k] = &Executed{Batch: b.(*Executed).Batch}
				}
				net[1-i] = append(net[1-i], f)
			}
		}
		// take has end i receive frame k of those on the net to it, which stays there.
		take := func(i, k int) {
			for _, b := range ends[i].Receive(&net[i][k], func(Payload) { acked[i]++ }) {
				heard[i] = append(heard[i], b.(*Executed).Batch)
			}
		}
		for range rapid.IntRange(0, 100).Draw(t, "events") {
			i := rapid.IntRange(0, 1).Draw(t, "end")
			switch what := rapid.IntRange(0, 5).Draw(t, "what"); {
			case what == 0:
				sent[i] = append(sent[i], BatchID(len(sent[i])))
				ends[i].Push(&Executed{Batch: sent[i][len(sent[i])-1]})
			case what == 1:
				f, ok := ends[i].Flush()
				send(i, f, ok)
			case what == 2:
				ends[i].Tick()
				f, ok := ends[i].Flush()
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
				s.Tick()
				f, ok := s.Flush()
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
