package job

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/internal/portable"
)

// Spot is how hosts are taken away and come back that somebody lends while nobody else wants them,
// and how cables become slow for a while: times, in seconds, that are drawn from exponential
// distributions with these means. Storms follow calms. The zero value says that nothing happens.
type Spot struct {
	Calm, Storm float64 // how long each lasts; 0 = there are no storms
	Lose        float64 // until a host is lost in a storm
	Back        float64 // until a host that was lost joins again
	All         float64 // from the end of one time in which all hosts are lost at once to the next
	// Every is from the end of one time in which cables are slow to the next one, Slow how long
	// that is, and Cable how many seconds a byte takes then; 0 = cables stay.
	Every, Slow, Cable float64
}

// maxSpotEvents bounds the list of events.
const maxSpotEvents = 1 << 18

// Events returns what happens until a time to so many hosts. The first host is only lost together
// with all others, so that the job goes on. It fails where that is more than a list can have.
func (s Spot) Events(seed uint64, hosts int, until float64) (list []Event, err error) {
	numbers, next := drawsOf(seed+3, 0), uint64(0)
	if s.All > 0 {
		list = s.allLost(seed, hosts, until)
	}
	// wait draws a time of a mean.
	wait := func(mean float64) float64 {
		next++
		return float64(-mean * portable.Log((float64(numbers.at(next)>>11)+0.5)/(1<<53)))
	}
	// add adds an event.
	add := func(at float64, what What, host int, value float64, text string) {
		list = append(list, Event{Timed: true, At: at, What: what, Host: host, Value: value,
			Text: text})
	}
	if s.Storm > 0 && s.Lose > 0 {
		there := make([]float64, hosts) // from when on
		for at := wait(s.Calm); at < until && len(list) <= maxSpotEvents; {
			end := at + wait(s.Storm)
			for host := 1; host < hosts; host++ {
				for lost := max(at, there[host]) + wait(s.Lose); lost < min(end, until) &&
					len(list) <= maxSpotEvents; {
					back := lost + wait(s.Back)
					add(lost, Lose, host, 0, fmt.Sprintf("h%d is taken away", host+1))
					add(back, Join, host, 0, fmt.Sprintf("h%d is back", host+1))
					there[host], lost = back, back+wait(s.Lose)
				}
			}
			at = end + wait(s.Calm)
		}
	}
	if s.Every > 0 && s.Slow > 0 {
		for at := wait(s.Every); at < until && len(list) <= maxSpotEvents; {
			end := at + wait(s.Slow)
			add(at, Slowdown, 0, s.Cable, "cables are slow")
			add(end, Slowdown, 0, 0, "cables are as before")
			at = end + wait(s.Every)
		}
	}
	if len(list) > maxSpotEvents {
		return nil, fmt.Errorf("more than %d events are drawn for %d hosts in %.6g s: let the run "+
			"be shorter, have fewer hosts, or let less happen", maxSpotEvents, hosts, until)
	}
	slices.SortStableFunc(list, func(a, b Event) int { return cmp.Compare(a.At, b.At) })
	if s.All > 0 {
		list = possibleEvents(list, hosts)
	}
	return list, nil
}

// allLost returns when all hosts are lost at once, and when each of them is back, until a time.
func (s Spot) allLost(seed uint64, hosts int, until float64) (list []Event) {
	numbers, next := drawsOf(seed+4, 0), uint64(0)
	// wait draws a time of a mean.
	wait := func(mean float64) float64 {
		next++
		return float64(-mean * portable.Log((float64(numbers.at(next)>>11)+0.5)/(1<<53)))
	}
	for at := wait(s.All); at < until && len(list) <= maxSpotEvents; {
		end := at
		for host := range hosts {
			back := at + wait(s.Back)
			list = append(list, Event{Timed: true, At: at, What: Lose, Host: host,
				Text: fmt.Sprintf("h%d is taken away with all others", host+1)},
				Event{Timed: true, At: back, What: Join, Host: host,
					Text: fmt.Sprintf("h%d is back", host+1)})
			end = max(end, back)
		}
		at = end + wait(s.All)
	}
	return list
}

// possibleEvents returns the events of a list, in its order, but for those by which a host is lost
// that is not there, or joins that is.
func possibleEvents(list []Event, hosts int) []Event {
	there := make([]bool, hosts)
	for i := range there {
		there[i] = true
	}
	return slices.DeleteFunc(list, func(e Event) bool {
		if e.What != Lose && e.What != Join {
			return false
		}
		before := there[e.Host]
		there[e.Host] = e.What == Join
		return before == there[e.Host]
	})
}
