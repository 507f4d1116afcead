package recorded

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/internal/portable"
	"github.com/shoal-ml/shoal/world/scenario"
)

// How a what-if is read, and what it changes of the models that fit to a run. Methods of
// calibration only read it, and a model is its caller's.

// what is a what-if, read as far as it is about the numbers of a model.
type what struct {
	size  int    // workers; 0 = as it is
	batch uint64 // 0 = as it is
	sync  string // how workers synchronise; "" = as they do
	round uint32 // optimizer steps of a round, where sync is known
	rest  string // parts about cables, slow hosts and sync, for package scenario
}

// readWhatIf reads a what-if, such as "size=8, batch=512, link h2=100Mbit, slow h3=2x". It takes
// how slow hosts are already out of the model, where the what-if says how slow they are.
func (c *calibration) readWhatIf(text string, m *model) (w what, err error) {
	var rest []string
	for _, item := range strings.Split(text, ",") {
		item = strings.TrimSpace(item)
		name, value, _ := strings.Cut(item, "=")
		words := strings.Fields(name)
		value = strings.TrimSpace(value)
		first := ""
		if len(words) > 0 {
			first = words[0]
		}
		switch {
		case first == "size" && len(words) == 1:
			w.size, err = strconv.Atoi(value)
			if err != nil || w.size < 1 {
				return w, fmt.Errorf("%q: a size is a number of workers, such as size=8", item)
			}
			if w.size/m.workers > scenario.MaxHosts {
				return w, fmt.Errorf("%q: up to %d hosts are played", item, scenario.MaxHosts)
			}
			if w.size%m.workers != 0 {
				return w, fmt.Errorf("%q: the hosts of this job have %d workers each: a size "+
					"is a multiple of that", item, m.workers)
			}
			continue
		case first == "batch" && len(words) == 1:
			w.batch, err = strconv.ParseUint(value, 10, 64)
			if err != nil || w.batch < 1 {
				return w, fmt.Errorf("%q: a batch is a number of samples, such as batch=512", item)
			}
			if m.batch == 0 {
				return w, fmt.Errorf("%q: the program states no data, so its batch is not known",
					item)
			}
			continue
		case first == "sync" && len(words) == 1 && strings.TrimSpace(value) != "auto":
			steps, of := "1", false
			if w.sync, steps, of = strings.Cut(value, "/"); !of {
				steps = "1"
			}
			n, _ := strconv.ParseUint(steps, 10, 32) // package scenario refuses what is none
			w.round = uint32(max(n, 1))
		case first == "sync":
			return w, fmt.Errorf("%q: policies decide in scenarios: name a way to synchronise, "+
				"such as sync=local/16", item)
		case first == "policy":
			return w, fmt.Errorf("%q: policies decide in scenarios: put the lines of this run "+
				"into a file, and add policy and a range of batches", item)
		case first == "link" && (m.local || m.gradients == 0):
			return w, fmt.Errorf("%q: nothing is known of cables: %s", item, c.whyNoCables())
		case first == "slow":
			item = m.removeSlowness(item)
		}
		rest = append(rest, item)
	}
	w.rest = strings.Join(rest, ", ")
	return w, nil
}

// whyNoCables says why nothing is known of cables.
func (c *calibration) whyNoCables() string {
	if c.mid.local {
		return "the job was on one host"
	}
	return "the run does not tell what its hosts exchange"
}

// removeSlowness has a model forget how slow a host is that an item such as "slow h3=2x" makes
// slower, and returns the item as compared with a usual host. What is no such item it returns as it
// is.
func (m *model) removeSlowness(item string) string {
	words := strings.Fields(strings.ReplaceAll(item, "=", " "))
	if len(words) != 3 {
		return item
	}
	name, isHost := strings.CutPrefix(words[1], "h")
	number, isFactor := strings.CutSuffix(words[2], "x")
	host, err := strconv.Atoi(name)
	factor, err2 := strconv.ParseFloat(number, 64)
	if !isHost || !isFactor || err != nil || err2 != nil || host < 1 || host > len(m.slow) ||
		!(factor >= 0 && factor < 1e9) {
		return item
	}
	before := m.slow[host-1]
	m.slow = append([]float64(nil), m.slow...)
	m.slow[host-1] = 1
	return fmt.Sprintf("slow h%d=%sx", host, numberText(factor*before))
}

// withWhatIf returns the model with what a what-if says of its numbers.
func (m model) withWhatIf(w what) model {
	if w.size > 0 {
		m.hosts = w.size / m.workers
	}
	if w.batch > 0 {
		m.batch = w.batch
	}
	if m.sync = w.sync; w.sync != "" {
		m.round = w.round
	}
	return m
}

// doubtAt returns how wrong, in logarithms, what is said of so many samples of a worker may be
// since so many were not seen; as in package twin. A guess says so itself.
func (c *calibration) doubtAt(samples float64) float64 {
	const doubtOutside = 0.2 // at twice as many as were seen
	if c.guess {
		return 0
	}
	return doubtOutside * portable.Log2(max(1, samples/c.most, c.least/samples))
}
