# The sender of a channel starts slowly, and the channel is removed and created again meanwhile.
{"seed":92017,"profile":"bridge","setup":{"channels":[{"name":"a","capacity":262144,"largest":1378,"strict":false}],"keeps":true,"lines":1}}
{"carry":{"trouble":"anew","has_server":true}}
