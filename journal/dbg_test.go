package journal_test
import ("github.com/keyward/keyward/journal/modeldisk";"testing";"os";"strconv";"fmt")
func TestDbg(t *testing.T){ n,_:=strconv.Atoi(os.Getenv("DBG")); w:=newCrashWorld(uint64(n)); err:=w.run(); fmt.Println(w.recycle, w.disk.NoPreallocation, w.options.SegmentBytes, err)
 for _,b:=range w.boots { fmt.Printf("%x faulty %v power %v flipped %v removed %v ever %v stopped %v\n",b.id,b.faulty,b.powerless,b.flipped,b.removed,b.ever,b.stopped)
 for _,f:=range w.disk.Files(b.j.Dir()){ c:=w.disk.Bytes(f); fmt.Println(f,len(c)); for o:=0;o<len(c);o+=4096 { p:=c[o:min(o+4096,len(c))]; fmt.Printf("  %d %x\n",o,p[:min(len(p),32)]) } } } }
func TestTrace(t *testing.T){ n,_:=strconv.Atoi(os.Getenv("DBG")); w:=newCrashWorld(uint64(n)); old:=w.disk.Before; w.disk.Before=func(op modeldisk.Operation, p string){ fmt.Println(op,p); old(op,p) }; err:=w.run(); fmt.Println(err) }
