package learn

import (
	"cmp"
	"slices"
)

// Forest is a random forest for regression: the mean of trees, each of which is grown on rows that
// are drawn with replacement and splits by the best of a few features, that which leaves the least
// variance (Breiman, "Random forests", Machine Learning 45, 2001). Its fields are exported so that
// it can be kept as JSON.
type Forest struct {
	Trees [][]Node // the root of each tree is its first node
}

// Node is one of a tree. A row whose feature is at most the limit goes on at the node Low, else at
// the one after it. A leaf has Low = 0.
type Node struct {
	Feature int
	Limit   float64
	Low     int
	Mean    float64 // of the rows that came here
}

// leastLeaf is how many rows a leaf has at the least.
const leastLeaf = 3

// GrowForest grows some trees on rows with as many features each and what is to be predicted of
// each row. No number may be NaN. It returns a forest that predicts 0 where there is no row.
func GrowForest(rows [][]float64, targets []float64, trees int, seed uint64) *Forest {
	f := &Forest{}
	if len(rows) == 0 {
		return f
	}
	r := NewRandom(seed)
	for range trees {
		g := &grower{rows: rows, targets: targets, random: r, sorted: make([]int, len(rows))}
		drawn := make([]int, len(rows))
		for i := range drawn {
			drawn[i] = r.IntN(len(rows))
		}
		g.nodes = make([]Node, 1)
		g.grow(0, drawn)
		f.Trees = append(f.Trees, g.nodes)
	}
	return f
}

// Predict returns what a row is predicted to have.
func (f *Forest) Predict(row []float64) float64 {
	if len(f.Trees) == 0 {
		return 0
	}
	sum := 0.0
	for _, nodes := range f.Trees {
		at := 0
		for nodes[at].Low > 0 {
			if row[nodes[at].Feature] <= nodes[at].Limit {
				at = nodes[at].Low
			} else {
				at = nodes[at].Low + 1
			}
		}
		sum += nodes[at].Mean
	}
	return sum / float64(len(f.Trees))
}

// grower grows one tree, for one call of GrowForest.
type grower struct {
	rows    [][]float64
	targets []float64
	random  *Random
	nodes   []Node
	sorted  []int // memory for split
}

// grow grows the tree from node `at` on, with the rows that came there, given by their numbers in
// `in`, whose order it changes.
func (g *grower) grow(at int, in []int) {
	sum := 0.0
	for _, i := range in {
		sum += g.targets[i]
	}
	g.nodes[at].Mean = sum / float64(len(in))
	if len(in) < 2*leastLeaf {
		return
	}
	// A third of the features is tried, as Breiman advises for regression.
	features := make([]int, len(g.rows[0]))
	for i := range features {
		features[i] = i
	}
	best, feature, limit := 0.0, -1, 0.0
	for k := range (len(features) + 2) / 3 {
		other := k + g.random.IntN(len(features)-k)
		features[k], features[other] = features[other], features[k]
		if gain, x := g.split(in, features[k], sum); gain > best {
			best, feature, limit = gain, features[k], x
		}
	}
	if feature < 0 {
		return
	}
	slices.SortFunc(in, func(a, b int) int {
		return cmp.Or(cmp.Compare(g.rows[a][feature], g.rows[b][feature]), cmp.Compare(a, b))
	})
	low := 0
	for low < len(in) && g.rows[in[low]][feature] <= limit {
		low++
	}
	child := len(g.nodes)
	g.nodes[at].Feature, g.nodes[at].Limit, g.nodes[at].Low = feature, limit, child
	g.nodes = append(g.nodes, Node{}, Node{})
	g.grow(child, in[:low])
	g.grow(child+1, in[low:])
}

// split returns by how much the sum of squared errors falls at the best limit of a feature, and the
// limit; 0 = no limit makes it fall.
func (g *grower) split(in []int, feature int, sum float64) (gain, limit float64) {
	s := g.sorted[:len(in)]
	copy(s, in)
	slices.SortFunc(s, func(a, b int) int {
		return cmp.Or(cmp.Compare(g.rows[a][feature], g.rows[b][feature]), cmp.Compare(a, b))
	})
	n, low := float64(len(s)), 0.0
	whole := float64(sum*sum) / n
	for k, i := range s[:len(s)-1] {
		low += g.targets[i]
		x, next := g.rows[i][feature], g.rows[s[k+1]][feature]
		if x == next || k+1 < leastLeaf || len(s)-k-1 < leastLeaf {
			continue
		}
		l, high := float64(k+1), sum-low
		fell := float64(low*low)/l + float64(high*high)/(n-l) - whole
		if fell > gain && fell > 1e-12*whole {
			gain, limit = fell, x
		}
	}
	return gain, limit
}
