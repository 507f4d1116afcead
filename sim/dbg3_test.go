package sim

import ("testing";"fmt";"os";"strconv";"github.com/shoal-ml/shoal/head")

func TestTrace(t *testing.T) {
	s,_ := strconv.ParseUint(os.Getenv("S"),10,64)
	lines, err := Random(s, int(100+s%5*150))
	fmt.Println(err)
	lines = Shrink(lines)
	c := New()
	Debug = func(h *host, a head.Action) {
		switch a := a.(type) {
		case head.Apply: fmt.Printf("   [%s] apply %d flight %x steps %d view %d parts %d entered %v released %v\n", h.name, a.Index, a.Flight, a.Steps, a.View.Generation, len(a.Parts), a.Entered, a.Released)
		case head.Decided: fmt.Printf("   [%s] decided %v head %s since %d\n", h.name, a.Record.View, a.Record.Head, a.Record.Since)
		case head.Execute: fmt.Printf("   [%s] execute %x hosts %v\n", h.name, a.Flight, a.Hosts)
		case head.Drop: fmt.Printf("   [%s] drop %x\n", h.name, a.Flight)
		case head.Send:
			if f, ok := a.Message.(head.Frame); ok && os.Getenv("V") != "" { fmt.Printf("   [%s>%s] term %d first %d ack %d %+.300v\n", h.name, a.To, f.Term, f.First, f.Ack, fmt.Sprintf("%T",f.Bodies)); for _, b := range f.Bodies { fmt.Printf("        %T %.200s\n", b, fmt.Sprintf("%+v", b)) }
			} else if os.Getenv("V") != "" { fmt.Printf("   [%s>%s] %T %.200s\n", h.name, a.To, a.Message, fmt.Sprintf("%+v", a.Message)) }
		}
	}
	for _, l := range lines { fmt.Println(l); c.Do(l); fmt.Print(c.Output()) }
	fmt.Println("==============================")
	fmt.Println(c.Finally()); fmt.Print(c.Output())
}
