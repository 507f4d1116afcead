package cables_test

import (
	"fmt"
	"maps"
	"math"
	"reflect"
	"testing"

	"github.com/shoal-ml/shoal/sense"
	"github.com/shoal-ml/shoal/sense/cables"
)

// streams are those of a link, which have carried so many MiB each in so many milliseconds.
func streams(each ...[2]int) (list []cables.Sent) {
	for _, s := range each {
		list = append(list, cables.Sent{Bytes: uint64(s[0]) << 20,
			Busy: sense.Duration(s[1]) * sense.Second / 1000})
	}
	return list
}

// The rate of a link is that of the time in which something was on its way, of several streams
// beside each other. Links on which little was sent are left out until more was. What has changed
// much is news.
func TestMeter(t *testing.T) {
	const mib = 1 << 20
	var m cables.Meter
	for i, step := range []struct {
		b, c  []cables.Sent
		rates cables.Rates
		news  bool
	}{
		{streams([2]int{5, 7}), streams([2]int{0, 0}, [2]int{0, 0}), nil, false},
		{streams([2]int{15, 107}), streams([2]int{1, 90}, [2]int{1, 100}),
			cables.Rates{"b": 100 * mib, "c": 20 * mib}, true},
		{streams([2]int{15, 107}), streams([2]int{2, 100}, [2]int{3, 250}),
			cables.Rates{"c": 20 * mib}, false},
		{streams([2]int{16, 207}), streams([2]int{2, 100}, [2]int{3, 250}),
			cables.Rates{"b": 10 * mib}, true},
		{streams([2]int{22, 257}), streams([2]int{4, 190}, [2]int{3, 250}),
			cables.Rates{"b": 120 * mib, "c": 23301689}, true}, // c does not change, b does
		{streams([2]int{32, 337}), streams([2]int{4, 190}, [2]int{3, 250}),
			cables.Rates{"b": 125 * mib}, false},
		{streams([2]int{49, 437}), streams([2]int{4, 190}, [2]int{3, 250}),
			cables.Rates{"b": 170 * mib}, true}, // much more than what was news last
		{streams([2]int{50, 437}), nil, cables.Rates{"b": 250 * mib}, true}, // within a tick
		{streams([2]int{50, 437}), streams([2]int{9, 9}), nil, false},       // another link to c
	} {
		now := map[string][]cables.Sent{"b": step.b, "c": step.c}
		maps.DeleteFunc(now, func(_ string, list []cables.Sent) bool { return list == nil })
		rates, news := m.Read(now)
		if !reflect.DeepEqual(rates, step.rates) || news != step.news {
			t.Errorf("reading %d: %v, news is %v; expected %v, %v", i, rates, news, step.rates,
				step.news)
		}
	}
}

// A link that is held to a rate has that one, and none that is held for less time than its cable is
// busy is slower by that.
func TestMeterOfALimit(t *testing.T) {
	var m cables.Meter
	read := func(mib, busy, held int) cables.Rates {
		list := streams([2]int{mib, busy})
		list[0].Held = sense.Duration(held) * sense.Second / 1000
		rates, _ := m.Read(map[string][]cables.Sent{"b": list})
		return rates
	}
	read(0, 0, 0)
	for i, step := range []struct{ mib, busy, held, rate int }{
		{10, 100, 1000, 10}, {20, 200, 1050, 100}, {30, 300, 1050, 100},
	} {
		if got := read(step.mib, step.busy, step.held)["b"]; got != float64(step.rate<<20) {
			t.Errorf("reading %d: %v bytes a second, not %d MiB", i, got, step.rate)
		}
	}
}

// What another host tells of its links can be, or is refused.
func TestValid(t *testing.T) {
	for _, c := range []struct {
		rate  float64
		valid bool
	}{{1, true}, {9e14, true}, {0, false}, {-1, false}, {1e15, false}, {math.NaN(), false},
		{math.Inf(1), false}} {
		if r := (cables.Rates{"a": 5, "b": c.rate}); r.Valid() != c.valid {
			t.Errorf("%v is valid: %v", r, r.Valid())
		}
	}
}

// A host has links to more others than it tells of.
func TestMeterIsBounded(t *testing.T) {
	var m cables.Meter
	for i := range 2 {
		now := map[string][]cables.Sent{}
		for peer := range 100 {
			now[fmt.Sprint(peer)] = streams([2]int{i, i})
		}
		if rates, _ := m.Read(now); i == 1 && len(rates) != cables.MaxRates || !rates.Valid() {
			t.Errorf("%d rates", len(rates))
		}
	}
}

// The cable of a host carries at least what its fastest link does, whichever end tells of it. Of
// all or none it is known.
func TestMap(t *testing.T) {
	var m cables.Map
	hosts := []string{"a", "b", "c"}
	m.Add("a", cables.Rates{"b": 4, "gone": 100}) // a ring, in which b is slow
	if got := m.Cables(hosts); got != nil {
		t.Errorf("of two hosts: %v", got)
	}
	m.Add("b", cables.Rates{"c": 5})
	m.Add("c", cables.Rates{"a": 40})
	if got, want := m.Cables(hosts), []float64{40, 5, 40}; !reflect.DeepEqual(got, want) {
		t.Errorf("%v, expected %v", got, want)
	}
	m.KeepOnly([]string{"b"})
	if got := m.Cables(hosts); got != nil {
		t.Errorf("with hosts that were forgotten: %v", got)
	}
}

// A note has the links on which enough was sent since the one before. The others have the rate that
// was told last, but say nothing of the cable after a while, which can have become slow since.
func TestMapOfNotesWithSomeLinks(t *testing.T) {
	var m cables.Map
	m.Add("b", cables.Rates{"a": 1})
	m.Add("c", cables.Rates{"a": 1})
	m.Add("a", cables.Rates{"b": 9})
	cable := 9.0
	for i := range 10 {
		m.Add("a", cables.Rates{"c": 2})
		if i == 7 {
			cable = 2
		}
		got := m.Cables([]string{"a", "b", "c"})
		if len(got) != 3 || got[0] != cable || m.Between("b", "a") != 9 ||
			m.Between("a", "c") != 2 {
			t.Errorf("after %d notes: cables %v, links %v and %v", i+2, got, m.Between("b", "a"),
				m.Between("a", "c"))
		}
	}
	m.KeepOnly([]string{"a", "c"})
	if got := m.Between("a", "b"); got != 0 {
		t.Errorf("to a host that was forgotten: %v", got)
	}
}

// Rates that were not told yet stay beside newer ones, unless these are of other hosts altogether.
func TestRatesWithNewer(t *testing.T) {
	r := cables.Rates(nil).With(cables.Rates{"a": 1, "b": 2}).With(cables.Rates{"b": 3, "c": 4})
	if want := (cables.Rates{"a": 1, "b": 3, "c": 4}); !maps.Equal(r, want) {
		t.Errorf("%v, expected %v", r, want)
	}
	many := cables.Rates{"b": 5}
	for i := range cables.MaxRates - 1 {
		many[fmt.Sprint(i)] = 6
	}
	if got := r.With(many); !maps.Equal(got, many) || !got.Valid() {
		t.Errorf("%v with too many is %v", r, got)
	}
}

// The streams to a host that has come back have carried less than those to it before: they are
// counted from there on.
func TestMeterOfAHostThatComesBack(t *testing.T) {
	var m cables.Meter
	for i, step := range []struct{ mib, millis, rate int }{
		{100, 1000, 0}, {200, 2000, 100}, {50, 100, 0}, {70, 1100, 20},
	} {
		rates, _ := m.Read(map[string][]cables.Sent{"b": streams([2]int{step.mib, step.millis})})
		if got := rates["b"]; got != float64(step.rate<<20) || !rates.Valid() {
			t.Errorf("reading %d: %v bytes a second, not %d MiB", i, got, step.rate)
		}
	}
}
