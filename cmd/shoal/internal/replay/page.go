package replay

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"html"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/shoal-ml/shoal/world/cluster"
)

// The page with charts of shoal replay: one file without a script, which loads nothing. Whatever
// comes from a file or a command line is escaped. The functions are pure but for writes to their
// buffer.

// style is the style sheet of the page.
const style = `:root{color-scheme:light dark}
body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:76rem;padding:0 1rem}
table{border-collapse:collapse}th,td{padding:.2rem .4rem;text-align:right;white-space:nowrap}
th:first-child,td:first-child{text-align:left}tr+tr{border-top:1px solid #8884}
.wide{overflow-x:auto}svg{width:100%;height:auto}
svg text{font-size:12px;fill:currentColor}
.axis{stroke:currentColor;stroke-opacity:.2}.line{fill:none;stroke-width:2}
.c0{stroke:#2a6fdb}.c1{stroke:#d9730d}.c2{stroke:#1a9c61}.c3{stroke:#b3399e}.c4{stroke:#8a7200}
.c5{stroke:#c8323c}
.d1{stroke-dasharray:7 3}.d2{stroke-dasharray:2 3}.d3{stroke-dasharray:9 3 2 3}
.d4{stroke-dasharray:12 4}.d5{stroke-dasharray:4 4}`

// classOf returns the colour and the dashes of a series by its number. Of six colours and six kinds
// of dashes each of the first 36 series has another pair.
func classOf(series int) string {
	return fmt.Sprintf("line c%d d%d", series%6, (series+series/6)%6)
}

// series is a line of a chart.
type series struct {
	name   string
	points [][2]float64
}

// pageOf returns the page of a report.
func pageOf(r *report) []byte {
	var b bytes.Buffer
	sum := sha256.Sum256([]byte(style))
	title := html.EscapeString("shoal replay: " + r.File)
	fmt.Fprintf(&b, `<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'sha256-%s'; `+
		`img-src data:; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>%s</title><link rel="icon" href="data:,"><style>%s</style></head><body><h1>%s</h1>
`, base64.StdEncoding.EncodeToString(sum[:]), title, style, title)
	for i, t := range r.Traces {
		fmt.Fprintf(&b, "<p>On %d GPUs: %d jobs of %d lines, %s GPU hours.</p>\n<ul>", t.gpus,
			len(t.Jobs), t.Rows, amountText(t.Work()/3.6e6))
		for _, f := range r.found(i) {
			fmt.Fprintf(&b, "<li>%s</li>", html.EscapeString(f.String()))
		}
		b.WriteString("</ul>\n")
	}
	if len(r.Runs) > 0 {
		x := r.Runs[0]
		fmt.Fprintf(&b, "<p>Costs %s, sigma %v, load %v, seed %d. Unfair is the part of jobs that "+
			"took longer than with an equal part of the GPUs.</p>\n", html.EscapeString(x.Costs),
			x.Sigma, x.Load, x.Seed)
	}
	b.WriteString(`<div class="wide"><table>`)
	for i, row := range r.table() {
		cell := "td"
		if i == 0 {
			cell = "th"
		}
		b.WriteString("<tr>")
		for _, text := range row {
			fmt.Fprintf(&b, "<%s>%s</%s>", cell, html.EscapeString(text), cell)
		}
		b.WriteString("</tr>\n")
	}
	b.WriteString("</table></div>\n<ul>")
	for _, text := range r.remarks() {
		fmt.Fprintf(&b, "<li>%s</li>", html.EscapeString(text))
	}
	b.WriteString("</ul>\n")
	var took, unfair, used []series
	for _, x := range r.Runs {
		name := fmt.Sprintf("%s, %d GPUs", x.Policy, x.GPUs)
		took = append(took, series{name, distribution(x.Jobs, len(x.Jobs),
			func(j *cluster.Job) float64 { return float64(j.JCT()) / 3.6e6 })})
		unfair = append(unfair, series{name, distribution(x.Jobs, x.Done,
			func(j *cluster.Job) float64 { return j.Unfair })})
		used = append(used, series{name, hourlyMeans(x.Hours, float64(x.GPUs))})
	}
	chart(&b, "Part of all jobs that are done after so many hours", took, true)
	chart(&b, "Part of all GPUs that are in use, by days", used, false)
	chart(&b, "Part of the jobs that are done whose time over that with equal parts is at most so "+
		"much", unfair, true)
	b.WriteString("</body></html>\n")
	return b.Bytes()
}

// distribution returns points of the distribution of a number of the jobs that are done: at most so
// much, and which part of so many jobs as `of` says has that, from 0 to 1.
func distribution(jobs []cluster.Job, of int, number func(j *cluster.Job) float64) (
	points [][2]float64) {
	var all []float64
	for i := range jobs {
		if jobs[i].Done() {
			all = append(all, max(number(&jobs[i]), 1e-4))
		}
	}
	slices.Sort(all)
	const steps = 200
	for k := range steps + 1 {
		if n := len(all); n > 0 {
			i := min(k*n/steps, n-1)
			points = append(points, [2]float64{all[i], float64(i+1) / float64(of)})
		}
	}
	return points
}

// hourlyMeans returns at most 300 points of a series of hours: the day, and the mean of what hours
// have then, as a part of gpus.
func hourlyMeans(hours []float64, gpus float64) (points [][2]float64) {
	step := max((len(hours)+299)/300, 1)
	for i := 0; i < len(hours); i += step {
		part := hours[i:min(i+step, len(hours))]
		sum := 0.0
		for _, x := range part {
			sum += x
		}
		points = append(points, [2]float64{(float64(i) + float64(len(part))/2) / 24,
			sum / float64(len(part)) / gpus})
	}
	return points
}

// The size of a chart, and the room for axes beside it.
const (
	width, height = 860.0, 300.0
	left, bottom  = 46.0, 30.0
)

// chart draws lines into b, under a title: across what the first number of a point is, upwards the
// second, a part from 0 to 1. log has the first on a logarithmic scale.
func chart(b *bytes.Buffer, title string, lines []series, log bool) {
	low, high := math.Inf(1), math.Inf(-1)
	for _, s := range lines {
		for _, p := range s.points {
			low, high = math.Min(low, p[0]), math.Max(high, p[0])
		}
	}
	if !(low <= high) {
		return
	}
	if !log {
		low = 0
	}
	scale := func(x float64) float64 {
		if log {
			x = math.Log10(x)
		}
		return x
	}
	from, to := scale(low), scale(high)
	if to-from < 1e-9 {
		to = from + 1
	}
	x := func(v float64) float64 { return left + (width-left)*(scale(v)-from)/(to-from) }
	y := func(v float64) float64 { return 8 + (height-bottom-8)*(1-math.Min(v, 1)) }
	fmt.Fprintf(b, "<h2>%s</h2>\n<svg viewBox=\"0 0 %g %g\" role=\"img\" aria-label=\"%s\">\n",
		title, width+10, height+float64(18*len(lines)), title)
	for _, part := range []float64{0, 0.25, 0.5, 0.75, 1} {
		fmt.Fprintf(b, `<line class="axis" x1="%g" x2="%g" y1="%.1f" y2="%.1f"/>`+
			`<text x="4" y="%.1f">%.0f %%</text>`+"\n", left, width, y(part), y(part), y(part)+4,
			100*part)
	}
	for _, v := range ticksOf(low, high, log) {
		fmt.Fprintf(b, `<line class="axis" x1="%.1f" x2="%.1f" y1="8" y2="%g"/>`+
			`<text x="%.1f" y="%g" text-anchor="middle">%g</text>`+"\n", x(v), x(v),
			height-bottom, math.Min(math.Max(x(v), left+10), width-12), height-10, v)
	}
	for i, s := range lines {
		var points strings.Builder
		for _, p := range s.points {
			fmt.Fprintf(&points, "%.1f,%.1f ", x(p[0]), y(p[1]))
		}
		name, at := html.EscapeString(s.name), height+float64(18*i)+6
		fmt.Fprintf(b, `<polyline class="%s" points="%s"><title>%s</title></polyline>`+
			`<line class="%[1]s" x1="%[4]g" x2="%g" y1="%g" y2="%[6]g"/>`+
			`<text x="%[7]g" y="%g">%[3]s</text>`+"\n", classOf(i), points.String(), name, left,
			left+40, at, left+48, at+4)
	}
	b.WriteString("</svg>\n")
}

// ticksOf returns the numbers that stand at an axis from low to high, ascending: 1, 2 or 5 times a
// power of ten on a logarithmic scale, where two of these are there, of many powers each second or
// third one; and else multiples of such a number.
func ticksOf(low, high float64, log bool) (ticks []float64) {
	const most = 9
	if log {
		for _, factors := range [][]int{{1, 2, 5}, {1}} {
			ticks = nil
			for power := math.Floor(math.Log10(low)); power <= math.Log10(high); power++ {
				for _, factor := range factors {
					v := decimal(factor, int(power))
					if v >= low && v <= high {
						ticks = append(ticks, v)
					}
				}
			}
			if n := len(ticks); n >= 2 && n <= most {
				return ticks
			}
		}
		if n := len(ticks); n > most {
			var some []float64
			for i := 0; i < n; i += (n + most - 1) / most {
				some = append(some, ticks[i])
			}
			return some
		}
	}
	span := max(high-low, high/1e6, 1e-9)
	power := int(math.Floor(math.Log10(span))) - 1
	for i := 0; ; i++ {
		unit, at := []int{1, 2, 5}[i%3], power+i/3
		apart := decimal(unit, at)
		first, last := math.Ceil(low/apart-1e-9), math.Floor(high/apart+1e-9)
		if last-first < most {
			for k := first; k <= last; k++ {
				ticks = append(ticks, decimal(int(k)*unit, at))
			}
			return ticks
		}
	}
}

// decimal returns n times a power of ten, as near as a number of 64 bits can be.
func decimal(n, power int) float64 {
	v, _ := strconv.ParseFloat(fmt.Sprintf("%de%d", n, power), 64)
	return v
}
