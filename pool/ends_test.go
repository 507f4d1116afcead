package pool

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// Jobs that take longer than what is expected of them, more or less, and half a second after their
// last step: soon the ends that are expected are near those that come, and four of five come within
// the interval, when they are decided and half-way from there, of which less is known before. Jobs
// of a kind that is new go by those of the others. So it is where jobs take longer and longer.
func TestEndsAreLearnt(t *testing.T) {
	const seed = 7
	for _, c := range []struct {
		name        string
		first, last float64 // how many times longer the first job takes, and the last one
		off         float64 // the most that the median error may be; what nobody can know is 0.13
	}{{"all alike", 1.4, 1.4, 0.2}, {"longer and longer", 1, 4, 0.25}} {
		r := rand.New(rand.NewPCG(seed, 1))
		m, err := New(Config{Name: "lab"}, 1_000_000)
		if err != nil {
			t.Fatal(err)
		}
		var within, n [moments]int
		var off [moments][]float64
		for i := range 300 {
			e := &entry{Job: Job{State: Ended, Steps: 10}}
			e.Submission.Kind = []string{"a", "b", "c"}[i%3]
			if i >= 200 {
				e.Submission.Kind = "new" + string(rune('a'+i%25))
			}
			left := int64(20_000 + r.IntN(100_000))
			longer := c.first * math.Pow(c.last/c.first, float64(i)/299)
			took := int64(float64(left) * longer * math.Exp(0.2*r.NormFloat64()))
			half := int64(float64(took) / 2 * math.Exp(0.05*r.NormFloat64()))
			began := m.now
			end := began + took + 500
			see := func(when moment, left int64) look {
				raw := m.now + left
				x := m.correct(e, Expectation{End: raw, Low: raw, High: raw}, when)
				if i >= 40 {
					n[when]++
					if x.Low <= end && end <= x.High {
						within[when]++
					}
					off[when] = append(off[when],
						math.Abs(float64(x.End-end))/float64(end-m.now))
				}
				return look{m.now, raw, x.Low, x.High}
			}
			e.foreseen = foreseen{look: see(whenDecided, left), last: began + took}
			m.now = began + (took+501)/2
			e.looks = []look{see(underWay, half)}
			m.now = end
			m.learn(e)
			m.now += 1000
		}
		for when := range moments {
			if part := float64(within[when]) / float64(n[when]); part < 0.75 || part > 0.85 {
				t.Errorf("%s, seed %d, moment %d: %.0f %% end in the interval of 80 %%", c.name,
					seed, when, 100*part)
			}
			list := off[when]
			if slices.Sort(list); list[len(list)/2] > c.off {
				t.Errorf("%s, seed %d, moment %d: the median error is %.0f %%", c.name, seed, when,
					100*list[len(list)/2])
			}
		}
	}
}

// A program may say that it has any number of steps: what is expected then is a time all the same.
func TestEndsFarAway(t *testing.T) {
	m, err := New(Config{Name: "lab"}, 1_000_000)
	if err != nil {
		t.Fatal(err)
	}
	m.past["a"] = &Past{Kind: "a", Ends: []PastEnd{{Part: mostPart}, {Part: mostPart}}}
	e := &entry{Job: Job{Submission: Submission{Kind: "a"}}}
	for _, end := range []int64{1 << 50, 1 << 60, math.MaxInt64} {
		x := m.correct(e, Expectation{End: end, Low: end, High: end}, whenDecided)
		if x.Low < m.now || x.End < x.Low || x.High < x.End {
			t.Errorf("an end at %d becomes %+v", end, x)
		}
	}
	if at := m.after(math.Inf(1)); at < m.now {
		t.Errorf("never becomes %d", at)
	}
}

// Of what is expected of a job that is under way, however long and however often it is said, few
// are kept, and of these one is half-way at whatever time the job ends.
func TestLooks(t *testing.T) {
	m, err := New(Config{Name: "lab"}, 1_000_000)
	if err != nil {
		t.Fatal(err)
	}
	for _, decided := range []int64{m.now, 0} { // 0 = its work was not known then
		e := &entry{Job: Job{State: Running}, foreseen: foreseen{look: look{at: decided}}}
		began := m.now
		for i := range 20_000 {
			m.now += int64(1 + i%7 + i/10)
			m.foresee(e, m.now+1000)
			if decided == 0 && i == 0 {
				began = m.now
			}
			f := e.foreseen
			f.looks = slices.Clone(f.looks)
			f.dropEarly(m.now)
			if n := len(e.looks); n > 2*looksApart || len(f.looks) == 0 {
				t.Fatalf("%d looks after %d ms", n, m.now-began)
			}
			took := m.now - began
			late := f.looks[0].at - began - took/2
			if most := took/looksApart + 2*int64(i/10+8); late < 0 || late > most {
				t.Fatalf("after %d ms the first look is %d ms after the half", took, late)
			}
		}
		m.now += 1000
	}
}
