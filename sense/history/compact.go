package history

import (
	"bytes"
	"slices"

	"github.com/shoal-ml/shoal/sense/machine"
)

// MaxFile is how many bytes of rows a file has at most.
const MaxFile = 16 << 20

// Compact returns the lines of a file of rows in fewer bytes: of the older half of the bytes it
// merges neighbours that are alike, by pairs, and if seven eighths of the limit are not enough
// then, it leaves the oldest rows out until they are. What cannot be read is left out.
// launcher/senselog calls it when a file has grown to its limit; text stays as it is.
func Compact(text []byte, limit int) []byte {
	var rows []Row
	for len(text) > 0 {
		line, rest, _ := bytes.Cut(text, []byte("\n"))
		text = rest
		if r, err := Parse(line); err == nil {
			rows = append(rows, r)
		}
	}
	lines := make([][]byte, len(rows))
	total := 0
	for i := range rows {
		lines[i] = rows[i].Encode()
		total += len(lines[i])
	}
	half, older := 0, 0
	for half < len(rows) && older+len(lines[half]) <= total/2 {
		older += len(lines[half])
		half++
	}
	var out []Row
	for i := 0; i < half; i++ {
		if i+1 < half && rows[i].isAlike(&rows[i+1]) {
			out = append(out, mergeRows(&rows[i], &rows[i+1]))
			i++
		} else {
			out = append(out, rows[i])
		}
	}
	out = append(out, rows[half:]...)
	return shorten(out, limit/8*7)
}

// shorten returns rows as lines of at most limit bytes in all, without the oldest ones where all
// are longer than that; the newest row always stays. What the others say of data goes to the next
// row, and what they say of hosts too if that is of the same members.
func shorten(rows []Row, limit int) []byte {
	lines, total := make([][]byte, len(rows)), 0
	for i := range rows {
		lines[i] = rows[i].Encode()
		total += len(lines[i])
	}
	first := 0
	for ; first+1 < len(rows) && total > limit; first++ {
		r, next := &rows[first], &rows[first+1]
		total -= len(lines[first]) + len(lines[first+1])
		if r.Generation == next.Generation && next.Hosts == nil {
			next.Hosts = r.Hosts
		}
		if next.Data == nil {
			next.Data = r.Data
		}
		lines[first+1] = next.Encode()
		total += len(lines[first+1])
	}
	return bytes.Join(lines[min(first, len(lines)):], nil)
}

// isAlike reports whether the row after this one has the same members, setting and rounds, so that
// mergeRows can make one of both.
func (r *Row) isAlike(next *Row) bool {
	return r.Generation == next.Generation && r.Size == next.Size && r.Batch == next.Batch &&
		r.Change == next.Change && max(r.Round, 1) == max(next.Round, 1) && next.Hosts == nil &&
		next.Data == nil && next.Step > r.Step && next.Steps <= next.Step-r.Step
}

// mergeRows returns what two rows that are alike say together. Quantiles become their means by
// steps.
func mergeRows(a, b *Row) Row {
	m := *b
	wa, wb := float64(a.Steps), float64(b.Steps)
	// mean returns the mean of two numbers, by steps.
	mean := func(x, y float64) float64 { return round((float64(wa*x) + float64(wb*y)) / (wa + wb)) }
	m.Steps, m.Samples, m.Span = a.Steps+b.Steps, a.Samples+b.Samples, round(a.Span+b.Span)
	m.Hosts, m.Data, m.Gradients = a.Hosts, a.Data, max(a.Gradients, b.Gradients)
	switch {
	case b.Seconds == nil:
		m.Seconds = a.Seconds
	case a.Seconds != nil:
		m.Seconds = &Quantiles{mean(a.Seconds.P10, b.Seconds.P10),
			mean(a.Seconds.Median, b.Seconds.Median), mean(a.Seconds.P90, b.Seconds.P90)}
	}
	switch {
	case b.Split == nil:
		m.Split = a.Split
	case a.Split != nil:
		m.Split = &Split{mean(a.Split.Data, b.Split.Data), mean(a.Split.Compute, b.Split.Compute),
			mean(a.Split.Exposed, b.Split.Exposed), mean(a.Split.Optimizer, b.Split.Optimizer)}
	}
	switch {
	case b.Slack == nil:
		m.Slack = a.Slack
	case len(a.Slack) == len(b.Slack):
		m.Slack = make([]float64, len(b.Slack))
		for i := range m.Slack {
			m.Slack[i] = mean(a.Slack[i], b.Slack[i])
		}
	}
	switch {
	case b.Loss == nil:
		m.Loss = a.Loss
	case a.Loss != nil:
		loss := mean(*a.Loss, *b.Loss)
		m.Loss = &loss
	}
	if b.Noise == nil || b.Noise.Scale == nil && a.Noise != nil {
		m.Noise = a.Noise
	}
	if b.Cable == 0 {
		m.Cable = a.Cable
	}
	m.Machines = mergeMachines(a.Machines, b.Machines)
	return m
}

// mergeMachines returns what two rows say together of machines: means, and the newer levels. The
// list is its caller's.
func mergeMachines(a, b []Machine) []Machine {
	if b == nil {
		return a
	}
	list := slices.Clone(b)
	for i, m := range list {
		for _, before := range a {
			if before.Host == m.Host {
				list[i].Usage = machine.Mean([]machine.Usage{before.Usage, m.Usage})
			}
		}
	}
	return list
}
