package record

import (
	"testing"

	"github.com/shoal-ml/shoal/member"
	"github.com/shoal-ml/shoal/topo"
)

// A generation that a person took out, as the error about one that is damaged says, is listed
// still. The head that begins again goes on from the one before.
func TestBeginningWithoutWhatWasTakenOut(t *testing.T) {
	for _, c := range []struct {
		kept  topo.Generation
		after topo.Generation
	}{{3, 3}, {2, 2}, {0, 1}} {
		s := newFakeStore()
		var w Writer
		w.SetHost("a", "a:7000")
		w.SetOwner(Owner{Job: "train", Run: "r", Host: "a", Generation: 1, Since: 1})
		w.Lead(1)
		for g := topo.Generation(1); g <= 2; g++ { // 2 and 3 in the record
			w.AddGeneration(member.Record{
				View: topo.View{Generation: g, Members: []topo.Member{{Worker: 0, Host: "a"}}},
				Head: "a", Hosts: []member.Host{{Name: "a", Slots: 1}}, Want: 1, Next: 1}, 1)
		}
		if told := s.runWriter(&w); len(told) > 0 {
			t.Fatalf("%+v", told)
		}
		for g := c.kept + 1; g <= 3; g++ {
			key := GenerationKey("train", "r", g)
			s.values[key], s.revisions[key] = nil, 0
		}
		b := Beginning{Owner: Owner{Job: "train", Run: "r2", Host: "a", Since: 2}, Alone: true}
		task, err := b.Task()
		for task != nil && err == nil {
			task, err = task.Answered(s.answer(task.Call))
		}
		if err != nil {
			t.Errorf("generations to %d are left: %v", c.kept, err)
		} else if b.Resumed == nil || b.Resumed.View.Generation != c.kept || b.Owner.Run != "r" ||
			b.Owner.Generation != c.after {
			t.Errorf("generations to %d are left: as %+v, from %+v", c.kept, b.Owner, b.Resumed)
		}
	}
}
