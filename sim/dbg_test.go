package sim

import ("testing";"fmt";"os";"strconv";"strings")

func TestDbg(t *testing.T) {
	n,_ := strconv.Atoi(os.Getenv("N"))
	stats := map[string]int{}
	for s := uint64(1); s < uint64(n); s++ {
		lines, err := Random(s, int(100+s%5*150))
		if err != nil { fmt.Println(s, err); stats["broken"]++ }
		c := New(); c.quiet=true
		for _, l := range lines { stats[strings.Fields(l)[0]]++; c.Do(l) }
		mid := c.ledger.newest
		stats["mid"] += int(mid)
		err = c.Finally()
		stats["steps"] += int(c.ledger.newest)
		if c.ledger.newest >= mid+3 { stats["wenton"]++ } else if c.mustGoOn() {stats["must"]++}
		if len(c.ledger.records) > 0 {
		for _, r := range c.ledger.records { stats["records"]++; if r.Since==r.View.Generation && r.Since>0 {stats["takeovers"]++} }
		}
	}
	fmt.Println(stats)
}
